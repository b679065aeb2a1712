"""Settings of StructAlign. Equations are those of its paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.layers.experts import check_top_k
from ctvr.methods.layers.losses.etf import Head
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.settings import SettingError, group, require, setting


@dataclass(frozen=True, kw_only=True)
class StructAlignConfig:
    """Settings, with ranges in search_spaces/; defaults are the paper's MSRVTT setting."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup", "data.num_frames")

    lr_first: float = setting(2e-5, doc="learning rate in the base task", part="recipe")
    lr: float = setting(3e-6, doc="learning rate in later tasks; 6e-6 on ACTNET", later=True, part="recipe")
    lr_other: float = setting(
        1e-5, doc="learning rate of learned prototypes and of frame fusion's alpha in later tasks", part="recipe"
    )
    lambda1: float = setting(0.1, doc="weight of the ETF alignment, eq. 18", part="loss")
    lambda2: float = setting(10.0, doc="weight of relation preserving, eq. 18", later=True, part="loss")
    tau: float | None = setting(
        None, doc="temperature of eqs. 19-20; none: CLIP's own, 0.01", unpublished=True, part="loss"
    )
    tau2: float = setting(0.1, doc="temperature of eq. 17", unpublished=True, later=True, part="loss")
    num_experts: int = setting(10, doc="number of experts I", unpublished=True)
    top_k: int = setting(2, doc="experts per token k_e", unpublished=True, at_most="num_experts")
    text_rank: int = setting(64, doc="rank of the text experts", unpublished=True)
    text_alpha: float = setting(
        256.0, doc="LoRA alpha of the text experts, whose factor is text_alpha / text_rank", unpublished=True
    )
    text_dropout: float = setting(0.1, doc="dropout on the text experts' input", unpublished=True)
    vision_rank: int = setting(32, doc="rank of the vision experts", unpublished=True)
    vision_alpha: float = setting(32.0, doc="LoRA alpha of the vision experts; equal to the rank: x A B, as in eq. 5")
    etf_num_classes: int | None = setting(
        None, doc="number of categories C, or an upper bound; none: the stream's number"
    )
    prototypes: Literal["fixed", "learned"] = setting(
        "fixed", doc="prototypes of eq. 7: the ETF itself, or learned with a penalty on the distance from it"
    )
    prototype_weight: float = setting(1.0, doc="weight omega of that penalty", part="loss")
    sigma: float | None = setting(
        None,
        doc="standard deviation in eq. 14; none: measured for each category and modality",
        unpublished=True,
        part="loss",
    )
    pseudo_per_pair: int = setting(2, doc="pseudo pairs for each real pair", unpublished=True, part="loss")
    # What the released code does otherwise
    adapters: Literal["lora", "task_aware"] = setting(
        "lora", doc="adapters of both towers. lora: eqs. 2-5; task_aware: FrameFusionMoE's"
    )
    fusion_layers: int = setting(10, doc="last blocks with frame fusion, with task_aware")
    etf_frame: Literal["orthonormal", "gaussian"] = setting("orthonormal", doc="matrix U of eq. 7")
    heads: Head = setting("mlp", doc="projections g_t and g_v: trained MLPs, or fixed random matrices")
    pseudo: Literal["inputs", "shared", "clip"] = setting(
        "inputs",
        doc="point at which pseudo features are sampled, see the module's docstring",
        paper="shared",
        part="loss",
    )
    swap_heads: bool = setting(
        False, doc="pseudo features before the heads pass through the other modality's head", exact=True, part="loss"
    )
    lambda1_is: Literal["weight", "share"] = setting(
        "weight",
        doc="meaning of lambda1. share: lambda1 L_ETF has lambda1 times the value of the other losses",
        exact=True,
        part="loss",
    )
    pair_weight: float = setting(
        0.0, doc="weight of an extra contrastive loss on pooled real and pseudo pairs", part="loss"
    )
    loss_reduction: Literal["mean", "sum"] = setting(
        "mean", doc="mean or sum of both directions; eq. 21: mean", part="loss"
    )
    divide_by_batch: bool = setting(
        False, doc="division of similarities by sqrt(B) in the contrastive loss", exact=True, part="loss"
    )
    teacher: Literal["previous", "initial"] = setting(
        "previous", doc="teacher of relation preserving: theta_{k-1}, or zero-shot CLIP in all tasks", part="loss"
    )
    crp_rows: Literal["both", "text"] = setting("both", doc="direction whose relations are preserved", part="loss")
    crp_on: Literal["similarity", "logits"] = setting(
        "similarity",
        doc="input of eq. 17. logits: tau2 divides the logits of eqs. 19-20, and the loss is times tau2^2",
        part="loss",
    )
    pads_are_words: bool = setting(
        False,
        doc="end-of-text tokens as words, up to the longest caption of the task or of all queries (release: "
        "of the batch)",
    )
    score: Literal["words", "fused"] = setting(
        "words",
        doc="score of a caption and a video. words: eq. 6; fused: half eq. 6, half mean frame x end of text, "
        "as z-scores",
    )
    reducer: ReducerConfig = group(
        REDUCERS,
        "none",
        doc="token reduction in the vision tower (not in the paper); task_aware adapters need tome_shared",
    )

    def __post_init__(self) -> None:
        weights = ("lambda1", "lambda2", "pair_weight", "prototype_weight")
        require(self, ">= 0", *weights, "lr", "lr_first", "lr_other", hint="Use 0 to leave its term out.")
        require(self, "> 0", "tau2", "tau")
        check_top_k(self.top_k, self.num_experts)
        for name in ("swap_heads", "pair_weight"):
            if getattr(self, name) and self.pseudo != "clip":
                raise SettingError(f"<{name}> needs <pseudo>=clip; <pseudo>={self.pseudo} samples at another point")
