"""Elastic weight consolidation: penalizes changes of weights that are important for earlier tasks.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv:1612.00796, eq. 3, over any
retriever, in the form that keeps one Fisher matrix for all tasks (Schwarz et al., arXiv:1805.06370, section 3.2):

    L = L_retriever + weight / 2 sum_i F_i (theta_i - theta*_i)^2
    F <- decay F + mean over batches of (d L_match / d theta_i)^2      at the end of every task

theta* are the weights after the previous task. L_match is the cross-entropy of matching a batch's captions and videos
in both directions. It replaces the papers' log-likelihood of a class: the "classes" of a video are the captions of its
batch. Only F and theta* are stored, which together take twice the memory of the trained weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr.methods.base import Batch, Capabilities, Method, Task, Tuned
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class EWCConfig:
    """Settings of EWC, with ranges in search_spaces/. No paper publishes values for retrieval."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    weight: float = setting(
        400.0,
        doc="weight lambda of the penalty, eq. 3 (default: the paper's value for Atari games). A suitable value "
        "depends on the size of the gradients",
        unpublished=True,
        part="loss",
    )
    decay: float = setting(
        1.0,
        doc="factor gamma of the previous Fisher information F after each task; 1: equal weights of all tasks, as in "
        "eq. 3",
        unpublished=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "weight", hint=f"Use weight=0 to train `{self.base}` alone.")
        require(self, "in [0, 1]", "decay", hint="Use 1 for equal weights of all tasks.")


class EWC(Strategy):
    """Strategy that pulls each weight to its value after the previous task, in proportion to its importance F_i."""

    Config = EWCConfig
    # shapes: with optim.lr_scale=50, for the small backbone. R@1 on validation videos of shapes-5, seed 0, is 31.9 with
    # weight 100, 30.6 with 1e4 and 1e6, and 33.8 with fine-tuning alone. There, earlier tasks profit most from training
    # without a penalty
    PRESETS = {
        "paper": {},
        "shapes": Tuned({"method.weight": 100.0, "base.lr": 4e-6}, trials=3, unrecorded=["base.lr"]),
    }
    config: EWCConfig

    @classmethod
    def capabilities(cls, config: EWCConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, uses_all_parameters=True)

    @classmethod
    def compares(cls, config: EWCConfig) -> bool:
        return config.weight > 0

    def __init__(self, config: EWCConfig, base: Method) -> None:
        super().__init__(config, base)
        self._held: list[str] = []  # trained parameters for which an earlier task has computed F

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        trained = self._trained() if self.config.weight else {}
        self._held = [name for name in trained if hasattr(self, _fisher(name))]
        for name, parameter in trained.items():
            if name not in self._held:
                self.register_buffer(_fisher(name), torch.zeros_like(parameter))
                self.register_buffer(_anchor(name), parameter.detach().clone())

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        batches = self._sense(loader) if self.config.weight else loader
        super().end_task(task, batches)
        if self.config.weight:
            for _ in batches:  # batches that the retriever has not read
                pass

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        if self._held:
            terms["consolidation"] = self.config.weight / 2 * self.distance()
        return terms

    def distance(self) -> Tensor:
        """Compute sum_i F_i (theta_i - theta*_i)^2, a scalar, over the trained weights."""
        weights = dict(self.base.named_parameters())
        parts = [
            (getattr(self, _fisher(name)) * (weights[name] - getattr(self, _anchor(name))) ** 2).sum()
            for name in self._held
        ]
        return torch.stack(parts).sum()

    def _trained(self) -> dict[str, nn.Parameter]:
        """Return a dictionary of the parameters that are trained in the current task, by name."""
        chosen = {id(parameter) for group in self.base.param_groups() for parameter in group["params"]}
        return {name: p for name, p in self.base.named_parameters() if id(p) in chosen}

    def _sense(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of `loader`; after the last one, update F, and set theta* to the current weights.

        Every worker receives all pairs of the task here, so gradients are not gathered.
        """
        trained = self._trained()
        sums = {name: torch.zeros_like(parameter) for name, parameter in trained.items()}
        count = 0
        for batch in loader:
            if trained:
                with torch.enable_grad():
                    gradients = torch.autograd.grad(self._match(batch), list(trained.values()), allow_unused=True)
                for name, gradient in zip(trained, gradients):
                    if gradient is not None:
                        sums[name] += gradient**2
            count += 1
            yield batch
        with torch.no_grad():
            for name, parameter in trained.items():
                getattr(self, _fisher(name)).mul_(self.config.decay).add_(sums[name] / max(1, count))
                getattr(self, _anchor(name)).copy_(parameter)

    def _match(self, batch: Batch) -> Tensor:
        texts, videos = self.base.encode_text(batch.tokens), self.base.encode_video(batch.frames)
        return contrastive(self.base.scale().float() * self.base.score(texts.float(), videos.float()))


def _fisher(name: str) -> str:
    return "fisher-" + name.replace(".", "-")


def _anchor(name: str) -> str:
    return "anchor-" + name.replace(".", "-")
