"""Settings of StructAlign. Equation numbers refer to its paper (see methods/structalign/__init__.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.layers.experts import check_top_k
from ctvr.methods.layers.losses.etf import Head
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.settings import SettingError, group, require, setting


@dataclass(frozen=True, kw_only=True)
class StructAlignConfig:
    """Settings of StructAlign; default values are from the paper's experiments on MSRVTT."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup", "data.num_frames")

    lr_first: float = setting(2e-5, doc="learning rate in task 1", part="recipe")
    lr: float = setting(3e-6, doc="learning rate from task 2 on (ACTNET: 6e-6)", later=True, part="recipe")
    lr_other: float = setting(
        1e-5,
        doc="learning rate of learned prototypes and of frame fusion's factor alpha from task 2 on",
        part="recipe",
    )
    lambda1: float = setting(0.1, doc="weight of the ETF alignment, eq. 18", part="loss")
    lambda2: float = setting(10.0, doc="weight of the relation-preserving loss, eq. 18", later=True, part="loss")
    tau: float | None = setting(
        None,
        doc="temperature of the contrastive loss, eqs. 19-20; none: the value of the CLIP checkpoint, 0.01",
        unpublished=True,
        part="loss",
    )
    tau2: float = setting(
        0.1, doc="temperature of the relation-preserving loss, eq. 17", unpublished=True, later=True, part="loss"
    )
    num_experts: int = setting(10, doc="number I of text experts", unpublished=True)
    top_k: int = setting(2, doc="number k_e of experts per caption", unpublished=True, at_most="num_experts")
    text_rank: int = setting(64, doc="rank of the text experts", unpublished=True)
    text_alpha: float = setting(
        256.0, doc="LoRA alpha of the text experts, whose factor is text_alpha / text_rank", unpublished=True
    )
    text_dropout: float = setting(0.1, doc="dropout rate of the input of the text experts", unpublished=True)
    vision_rank: int = setting(32, doc="rank of LoRA in the vision tower", unpublished=True)
    vision_alpha: float = setting(
        32.0, doc="LoRA alpha in the vision tower, where the factor is vision_alpha / vision_rank; eq. 5 has factor 1"
    )
    etf_num_classes: int | None = setting(
        None, doc="number C of categories, or an upper bound of it; none: the stream's number of categories"
    )
    prototypes: Literal["fixed", "learned"] = setting(
        "fixed",
        doc="kind of prototypes. fixed: the ETF (equiangular tight frame) of eq. 7; learned: trained with a penalty "
        "on the distance from the ETF",
    )
    prototype_weight: float = setting(
        1.0, doc="weight omega of the penalty on the distance of learned prototypes from the ETF", part="loss"
    )
    sigma: float | None = setting(
        None,
        doc="standard deviation of pseudo features, eq. 14; none: measured for each category and modality",
        unpublished=True,
        part="loss",
    )
    pseudo_per_pair: int = setting(2, doc="number of pseudo pairs for each real pair", unpublished=True, part="loss")
    # Settings in which the released code differs from the paper
    adapters: Literal["lora", "task_aware"] = setting(
        "lora", doc="adapters of both towers. lora: eqs. 2-5; task_aware: the adapters of FrameFusionMoE"
    )
    fusion_layers: int = setting(10, doc="number of last blocks that have frame fusion, with adapters=task_aware")
    etf_frame: Literal["orthonormal", "gaussian"] = setting(
        "orthonormal",
        doc="matrix U of eq. 7. orthonormal: orthonormal columns; gaussian: a random Gaussian matrix (released code)",
    )
    heads: Head = setting(
        "mlp", doc="projections g_t and g_v. mlp: trained MLPs; frozen_linear: fixed random matrices (released code)"
    )
    pseudo: Literal["inputs", "shared", "clip"] = setting(
        "inputs",
        doc="features that pseudo pairs imitate. inputs: inputs of the heads; shared: outputs of the heads; clip: "
        "normalized inputs of the heads (released code)",
        paper="shared",
        part="loss",
    )
    swap_heads: bool = setting(
        False,
        doc="whether pseudo features pass through the head of the other modality, with pseudo=clip",
        exact=True,
        part="loss",
    )
    lambda1_is: Literal["weight", "share"] = setting(
        "weight",
        doc="use of lambda1. weight: L_ETF is multiplied by lambda1; share: in each step, L_ETF is scaled to lambda1 "
        "times the sum of the other losses",
        exact=True,
        part="loss",
    )
    pair_weight: float = setting(
        0.0,
        doc="weight of an additional contrastive loss on pooled real and pseudo pairs, with pseudo=clip",
        part="loss",
    )
    loss_reduction: Literal["mean", "sum"] = setting(
        "mean",
        doc="reduction of the contrastive losses of both directions: mean (eq. 21) or sum (released code)",
        part="loss",
    )
    divide_by_batch: bool = setting(
        False, doc="whether to divide similarities by sqrt(B) in the contrastive loss", exact=True, part="loss"
    )
    teacher: Literal["previous", "initial"] = setting(
        "previous",
        doc="teacher of the relation-preserving loss. previous: the model after the previous task; initial: "
        "zero-shot CLIP in all tasks",
        part="loss",
    )
    crp_rows: Literal["both", "text"] = setting(
        "both",
        doc="directions of the relation-preserving loss. both: both directions; text: only from captions to videos",
        part="loss",
    )
    crp_on: Literal["similarity", "logits"] = setting(
        "similarity",
        doc="input of eq. 17. similarity: similarities divided by tau2; logits: the logits of eqs. 19-20 divided by "
        "tau2, and the loss is multiplied by tau2^2",
        part="loss",
    )
    pads_are_words: bool = setting(
        False,
        doc="whether padding tokens count as words, up to the longest caption of the task in training or of all "
        "queries in the search (released code: of the batch)",
    )
    score: Literal["words", "fused"] = setting(
        "words",
        doc="score of a caption and a video. words: eq. 6; fused: mean of two z-scores, of eq. 6 and of the cosine "
        "between the mean frame and the end-of-text feature",
    )
    reducer: ReducerConfig = group(
        REDUCERS,
        "none",
        doc="token reduction in the vision tower (not in the paper); task_aware adapters need tome_shared",
    )

    def __post_init__(self) -> None:
        weights = ("lambda1", "lambda2", "pair_weight", "prototype_weight")
        require(self, ">= 0", *weights, "lr", "lr_first", "lr_other", hint="Use 0 to disable it.")
        require(self, "> 0", "tau2", "tau")
        check_top_k(self.top_k, self.num_experts)
        for name in ("swap_heads", "pair_weight"):
            if getattr(self, name) and self.pseudo != "clip":
                raise SettingError(f"<{name}> needs <pseudo>=clip; <pseudo>={self.pseudo} draws other features")
