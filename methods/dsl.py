"""Dual Softmax for any retriever: in its loss, in the search, or in both (CAMoE, arXiv:2109.04290, eqs. 15-18).

It multiplies the similarities of each search direction by their softmax over the other direction. Table 6 of the paper
adds it to CLIP, FROZEN and CLIP4Clip. In the search it reads the complete matrix of queries and videos, so other
queries affect the ranks of a query. The method is then *transductive*, and its results are not comparable with those of
other methods. Users of the authors' code report that nearly all of the gain comes from the search (starmemda/CAMoE,
issues 4 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Capabilities, Method, Override
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.distillation import EncodedOnce
from ctvr.methods.layers.losses.dual_softmax import Gain, Reduction, dual_softmax, revise
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class DSLConfig:
    """Settings of Dual Softmax, with ranges in search_spaces/. Temperatures are from the authors' code and advice."""

    UNPUBLISHED = ("optim.epochs", "optim.warmup", "data.batch_size")

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    loss: bool = setting(True, doc="whether to use Dual Softmax in the retriever's contrastive loss")
    search: bool = setting(
        True, doc="whether to apply Dual Softmax to the similarities of all queries at test time (transductive)"
    )
    temperature: float = setting(
        1000.0, doc="temperature of the dual-softmax prior in the loss", unpublished=True, part="loss"
    )
    test_temperature: float = setting(1.0, doc="temperature of the dual-softmax prior at test time")
    gain: Gain = setting(
        "batch",
        doc="factor of the dual-softmax prior. batch: the batch size, as in the authors' code; one: 1, as in the paper",
        paper="one",
    )
    reduction: Reduction = setting(
        "sum", doc="mean or sum of the two directions of the loss (eq. 13: sum)", part="loss"
    )
    weight: float = setting(
        1.0,
        doc="weight of the loss with Dual Softmax; it replaces the retriever's own weight of its contrastive loss, "
        "for example 1 - beta of FrameFusionMoE",
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, "> 0", "temperature", "test_temperature", hint="The authors use 1000, and 1 at test.")
        require(self, ">= 0", "weight", hint="Use <loss>=false to keep the loss unchanged.")


class DSL(Strategy):
    """Strategy that reweights each direction of a retriever's loss or search by the softmax of the other direction."""

    Config = DSLConfig
    PRESETS = {
        "paper": {},
        "loss": Override({"method.search": False}),  # not transductive
        "search": Override({"method.loss": False}),  # trained without Dual Softmax
        "shapes": {"base.lr": 4e-6},  # as for clip4clip
    }
    config: DSLConfig

    @classmethod
    def compares(cls, config: DSLConfig) -> bool:
        return config.loss or config.search

    @classmethod
    def check_base(cls, config: DSLConfig, base: type[Method], base_config: Any) -> None:
        super().check_base(config, base, base_config)
        if config.loss and not base.capabilities(base_config).uses_in_batch_negatives:
            raise ValueError(
                "the strategy revises a contrastive loss over the pairs of a batch, which the retriever lacks. "
                "Set method.loss=false to revise only the search, or use a retriever such as clip4clip."
            )

    @classmethod
    def capabilities(cls, config: DSLConfig) -> Capabilities:
        # The prior of a pair is a softmax over a complete row or column, so `search` needs the matrix
        return Capabilities(uses_all_parameters=True, is_transductive=config.search, normalizes_scores=config.search)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss terms of the retriever, with `contrastive` replaced by eqs. 15-16.

        Raises:
            ValueError: if the retriever lacks a term `contrastive`.
        """
        if not self.config.loss:
            return super().losses(batch)
        encoded = EncodedOnce(self.base, batch)
        terms = encoded.losses()
        if "contrastive" not in terms:
            raise ValueError(
                f"method.loss=true revises a loss called contrastive; {self.config.base} has only "
                f"{', '.join(terms)}. Set method.loss=false to revise the search alone."
            )
        queries, videos = gather(encoded.texts()), gather(encoded.videos())
        with torch.autocast(videos.device.type, enabled=False):
            logits = self.base.scale().float() * self.base.score(queries.float(), videos.float())
            revised = dual_softmax(logits, self.config.temperature, self.config.gain, self.config.reduction)
        terms["contrastive"] = self.config.weight * revised
        return terms

    def normalize_scores(self, scores: Tensor) -> Tensor:
        scores = self.base.normalize_scores(scores)
        if not self.config.search:
            return scores
        return revise(self.base.scale().item() * scores, self.config.test_temperature)

    def normalize_scores_v2t(self, scores: Tensor) -> Tensor:
        scores = self.base.normalize_scores_v2t(scores)
        if not self.config.search:
            return scores
        return revise(self.base.scale().item() * scores, self.config.test_temperature, dim=1)
