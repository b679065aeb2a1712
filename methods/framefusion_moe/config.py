"""Settings of FrameFusionMoE. Equations and sections refer to its paper, arXiv:2503.10111."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.layers.experts import check_top_k
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.layers.temporal import FFAInit
from ctvr.methods.settings import SettingError, group, require, setting


@dataclass(frozen=True, kw_only=True)
class FrameFusionMoEConfig:
    """Settings of FrameFusionMoE; default values that the paper does not specify are from the released code."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup")

    reducer: ReducerConfig = group(
        REDUCERS,
        "none",
        doc="token reduction in the vision tower (not in the paper); FFA needs the same merges in all frames "
        "(tome_shared)",
    )

    # Vision, section 3.3
    use_ffa: bool = setting(
        True, doc="whether to use frame fusion adapters (FFA); if not (`w/o FFA`), the vision tower is frozen"
    )
    ffa_layers: int = setting(
        10,
        doc="number of blocks with FFA, at most the depth of the tower (section 4.4: 10 for MSRVTT, 12 for ACTNET)",
        depth=True,
    )
    ffa_placement: Literal["shallowest", "deepest"] = setting(
        "shallowest",
        doc="position of the blocks with FFA: the shallowest blocks of the tower (section 5.3), or the deepest "
        "(released code)",
    )
    ffa_direction: Literal["previous", "alternate"] = setting(
        "previous",
        doc="frame to which a frame attends. previous: the previous frame (eq. 1); alternate: the previous frame in "
        "even blocks and the next in odd blocks (released code)",
        exact=True,
    )
    ffa_mix: Literal["add", "convex"] = setting(
        "add",
        doc="mixture of spatial attention SA and cross-frame attention CA. add: SA + alpha CA (eq. 3); convex: (1 - "
        "alpha) SA + alpha CA (released code)",
        exact=True,
    )
    ffa_output: bool = setting(
        True,
        doc="whether FFA has an output projection; eqs. 1 and 2 do not mention it, but CLIP's attention has one, and "
        "the printed 46.8M parameters include it",
    )
    ffa_init: FFAInit = setting(
        "identity",
        doc="initialization of FFA; not published; in the released code it depends on the version of transformers",
        unpublished=True,
    )
    alpha_init: float = setting(
        0.0, doc="initial value of alpha, not published; with 0 the untrained model equals CLIP", unpublished=True
    )

    # Text, section 3.4
    use_tame: bool = setting(True, doc="whether to use experts in the text tower; without them it is frozen")
    use_prototypes: bool = setting(
        True,
        doc="whether the router adds a task prototype to the end-of-text token; otherwise a caption has one feature "
        "for all tasks",
    )
    num_experts: int = setting(
        10,
        doc="number of experts (section 4.4: 10 for MSRVTT, 5 for ACTNET); one expert without prototypes has no router",
        later=True,
    )
    top_k: int = setting(
        2,
        doc="number of experts per caption, at most num_experts; not published",
        unpublished=True,
        later=True,
        at_most="num_experts",
    )
    rank: int = setting(64, doc="rank of the experts; not published", unpublished=True)
    lora_alpha: float = setting(
        256.0, doc="LoRA alpha, not published; by default, lambda of eq. 6 is lora_alpha / rank = 4", unpublished=True
    )
    dropout: float = setting(0.1, doc="dropout rate of the input of the experts; not published", unpublished=True)
    noisy_router: bool = setting(
        True,
        doc="whether the router adds noise in training; eq. 4 does not show it, but the printed 46.8M parameters "
        "include its weights",
    )
    first_task_bypass: bool = setting(
        True,
        doc="whether task 1 trains expert 0 without a router; it is then copied to all others (released code). Eq. 4 "
        "does not say how task 1 is trained",
    )

    # Losses, section 3.5
    beta: float = setting(
        0.6,
        doc="weight of the cross-task loss from task 2 on, eq. 9; 0 is the ablation `w/o L_CT`",
        later=True,
        part="loss",
    )
    references: Literal["all", "batch"] = setting(
        "all",
        doc="videos of previous tasks that a training step uses in the cross-task loss, eq. 8. all: all of them; "
        "batch: one batch, the next step the next batch (released code)",
        part="loss",
    )
    reference_source: Literal["gallery", "train"] = setting(
        "gallery",
        doc="source of the videos of previous tasks in the cross-task loss, eq. 8. gallery: unlabeled test videos, "
        "which section 3.1 defines as the database; train: training videos",
        part="loss",
    )
    loss_reduction: Literal["mean", "sum"] = setting(
        "mean",
        doc="reduction of the contrastive losses of both directions: mean (eq. 9) or sum (released code)",
        part="loss",
    )
    logit_scale: float | None = setting(
        None,
        doc="fixed value of log(1 / temperature) (released code: 4.60); none: the value of the CLIP checkpoint",
        part="loss",
    )

    lr_text: float = setting(
        4e-6,
        doc="learning rate of the text experts from task 2 on (section 4.4: 4e-6 for MSRVTT, 6e-6 for ACTNET)",
        later=True,
        part="recipe",
    )
    lr_vision: float = setting(
        4e-6,
        doc="learning rate of frame fusion from task 2 on (section 4.4: 4e-6 for MSRVTT, 6e-6 for ACTNET)",
        later=True,
        part="recipe",
    )
    lr_other: float = setting(
        4e-6,
        doc="learning rate of alpha and prototypes from task 2 on (section 4.4: 4e-6 for MSRVTT, 6e-6 for ACTNET)",
        later=True,
        part="recipe",
    )
    lr_text_first: float = setting(
        2e-5, doc="learning rate of the text experts in task 1; not published", unpublished=True, part="recipe"
    )
    lr_vision_first: float = setting(
        2e-5, doc="learning rate of frame fusion in task 1; not published", unpublished=True, part="recipe"
    )
    lr_other_first: float = setting(
        2e-5, doc="learning rate of alpha and prototypes in task 1; not published", unpublished=True, part="recipe"
    )

    @property
    def is_routed(self) -> bool:
        """Return whether adapters have routers; those with a single expert and without prototypes have none."""
        return self.num_experts > 1 or self.use_prototypes

    def __post_init__(self) -> None:
        require(self, "in [0, 1]", "beta", hint="Use 0.6, or 0 to disable the cross-task loss.")
        require(self, ">= 1", "num_experts", "rank", hint="Use <use_tame>=false to disable experts.")
        check_top_k(self.top_k, self.num_experts)
        require(self, ">= 0", "ffa_layers", hint="Use 0 to disable FFA.")
        require(self, "in [0, 1)", "dropout")
        if self.ffa_init == "zero_out" and not self.ffa_output:
            raise SettingError("<ffa_init>=zero_out needs an output projection", "Set <ffa_output>=true.")
        require(self, ">= 0", "lr_text", "lr_vision", "lr_other", "lr_text_first", "lr_vision_first", "lr_other_first")
