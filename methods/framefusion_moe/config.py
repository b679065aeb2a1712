"""Settings of FrameFusionMoE. Equations and sections are those of its paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.layers.experts import check_top_k
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.layers.temporal import FFAInit
from ctvr.methods.settings import SettingError, group, require, setting


@dataclass(frozen=True, kw_only=True)
class FrameFusionMoEConfig:
    """Settings, with ranges in search_spaces/; values that are not published are the released code's."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup")

    reducer: ReducerConfig = group(
        REDUCERS,
        "none",
        doc="token reduction in the vision tower (not in the paper); FFA needs one plan for all frames (tome_shared)",
    )

    # Vision, section 3.3
    use_ffa: bool = setting(True, doc='frame fusion adapters; false: the ablation "w/o FFA", a frozen vision tower')
    ffa_layers: int = setting(
        10, doc="blocks with FFA, at most the tower's depth; section 4.4: 10 for MSRVTT, 12 for ACTNET", depth=True
    )
    ffa_placement: Literal["shallowest", "deepest"] = setting(
        "shallowest", doc="end of the tower that has FFA; section 5.3: shallowest, the code: deepest"
    )
    ffa_direction: Literal["previous", "alternate"] = setting(
        "previous",
        doc="frame that a frame attends to. previous: eq. 1; alternate: the code, where odd blocks use the next frame",
        exact=True,
    )
    ffa_mix: Literal["add", "convex"] = setting(
        "add",
        doc="mixture of both attentions. add: eq. 3, SA + alpha CA; convex: the code, (1 - alpha) SA + alpha CA",
        exact=True,
    )
    ffa_output: bool = setting(
        True,
        doc="output projection of FFA; eqs. 1 and 2 name none, but CLIP's attention has one and the printed "
        "46.8M parameters need it",
    )
    ffa_init: FFAInit = setting(
        "identity",
        doc="initialization of FFA; not published, and the released code's depends on its version of transformers",
        unpublished=True,
    )
    alpha_init: float = setting(
        0.0, doc="initial alpha; not published; with 0 the untrained model equals CLIP", unpublished=True
    )

    # Text, section 3.4
    use_tame: bool = setting(True, doc="experts in the text tower; false: a frozen text tower")
    use_prototypes: bool = setting(
        True, doc="task prototypes; false: one caption feature for all tasks, the router reads the bare token"
    )
    num_experts: int = setting(
        10,
        doc="number of experts; section 4.4: 10 for MSRVTT, 5 for ACTNET; 1 without prototypes: no router",
        later=True,
    )
    top_k: int = setting(
        2,
        doc="experts per token, at most num_experts; not published",
        unpublished=True,
        later=True,
        at_most="num_experts",
    )
    rank: int = setting(64, doc="rank of the experts; not published", unpublished=True)
    lora_alpha: float = setting(
        256.0, doc="LoRA alpha; not published; lambda of eq. 6 is lora_alpha / rank = 4", unpublished=True
    )
    dropout: float = setting(0.1, doc="dropout on the experts' input; not published", unpublished=True)
    noisy_router: bool = setting(
        True, doc="noise in the router; eq. 4 shows none, but the printed 46.8M parameters include its weights"
    )
    first_task_bypass: bool = setting(
        True,
        doc="expert 0 without a router in task 1, then copied into all others, as in the code; eq. 4 does "
        "not define task 1",
    )

    # Losses, section 3.5
    beta: float = setting(
        0.6,
        doc='weight of the cross-task loss, eq. 9; 0 in task 1; 0 everywhere is the ablation "w/o L_CT"',
        later=True,
        part="loss",
    )
    references: Literal["all", "batch"] = setting(
        "all", doc="former videos in eq. 8; batch: one batch after the other, as in the code", part="loss"
    )
    reference_source: Literal["gallery", "train"] = setting(
        "gallery",
        doc="features of former tasks. gallery: (unlabelled) test videos, as section 3.1 defines the "
        "database; train: their training videos",
        part="loss",
    )
    loss_reduction: Literal["mean", "sum"] = setting(
        "mean", doc="mean or sum of both directions; eq. 9: mean, the code: sum", part="loss"
    )
    logit_scale: float | None = setting(
        None, doc="fixed log(1 / temperature); none: CLIP's own; the code: 4.60", part="loss"
    )

    lr_text: float = setting(
        4e-6,
        doc="learning rate of the text experts in later tasks; section 4.4: 4e-6 (MSRVTT), 6e-6 (ACTNET)",
        later=True,
        part="recipe",
    )
    lr_vision: float = setting(
        4e-6, doc="learning rate of frame fusion in later tasks; section 4.4 as lr_text", later=True, part="recipe"
    )
    lr_other: float = setting(
        4e-6,
        doc="learning rate of alpha and prototypes in later tasks; section 4.4 as lr_text",
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
        """Return whether the experts have routers; with one expert and no prototype nothing can be selected."""
        return self.num_experts > 1 or self.use_prototypes

    def __post_init__(self) -> None:
        require(self, "in [0, 1]", "beta", hint="Use 0.6, or 0 for none.")
        require(self, ">= 1", "num_experts", "rank", hint="Use <use_tame>=false for no experts.")
        check_top_k(self.top_k, self.num_experts)
        require(self, ">= 0", "ffa_layers", hint="Use 0 for no FFA.")
        require(self, "in [0, 1)", "dropout")
        if self.ffa_init == "zero_out" and not self.ffa_output:
            raise SettingError("<ffa_init>=zero_out starts from an output projection of zero; set <ffa_output>=true")
        require(self, ">= 0", "lr_text", "lr_vision", "lr_other", "lr_text_first", "lr_vision_first", "lr_other_first")
