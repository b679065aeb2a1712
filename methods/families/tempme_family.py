"""Shared base of the retrievers in TempMe's tables (arXiv:2409.01156, sections 3.1 and 4.1).

They consist of frozen CLIP, an adaptation of both towers, and a token reducer in the vision tower:

    f_t = unit(CLIP_v(frame t | adaptation, reducer)),   v = unit(mean over t of f_t)
    q = unit(CLIP_t(caption | adaptation) at the end-of-text token)
    S = q v^T;   loss = InfoNCE of S / tau, averaged over both directions, with fixed tau = 1 / exp(logit_scale)

This file is not a method. The methods lora, prompt, adapter and tempme define their adaptation and reducer.

Shapes: B videos or captions, T frames, G attention groups, N tokens, D width of a tower, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState
from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, Recipe, Task, l2_normalize
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.reduction.config import TRAINED_REDUCERS, ReducerConfig, SearchedDiffRateConfig
from ctvr.methods.layers.reduction.diffrate_search import DiffRateSearch
from ctvr.methods.layers.reduction.reducers import combine, make_reducer
from ctvr.methods.settings import group, require, setting

# Values of section 4.1 of the paper or, if it does not specify them, of the scripts of the released code. Frames and
# tokens depend on the data set: 12 and 32 for MSRVTT and LSMDC (here), 64 and 64 for ActivityNet and DiDeMo (tables).
PAPER: dict[str, Any] = {
    "optim.name": "adamw",
    "optim.weight_decay": 0.2,
    "optim.decay_parameters": "all",
    "optim.epochs": 5,
    "optim.warmup": 0.1,
    "optim.schedule": "cosine",
    "optim.num_cycles": 0.5,
    "optim.grad_clip": 1.0,
    "data.batch_size": 128,
    "data.max_tokens": 32,
}
SHAPES: dict[str, Any] = {"method.lr": 2e-5}  # with optim.lr_scale=50 it is 1e-3, which suits the small backbone
_ADAMW, _MAIN = "tvr/models/optimization_adamw.py", "main.py"
RELEASED = Recipe(
    "LunarShen/TempMe (commit not recorded)",
    {
        "optim.name": ("adamw_hf", _ADAMW),
        "optim.betas": ((0.9, 0.999), _ADAMW),
        "optim.eps": (1e-6, _ADAMW),
        "optim.weight_decay": (0.2, f"{_MAIN}: --weight_decay"),
        "optim.decay_parameters": ("all", f"{_MAIN}: one group"),
        "optim.epochs": (5, f"{_MAIN}: --epochs"),
        "optim.warmup": (0.1, f"{_MAIN}: --warmup_proportion"),
        "optim.warmup_from": ("zero", f"{_ADAMW}: get_cosine_schedule_with_warmup"),
        "optim.schedule": ("cosine", f"{_ADAMW}: get_cosine_schedule_with_warmup"),
        "optim.num_cycles": (0.5, f"{_ADAMW}: get_cosine_schedule_with_warmup"),
        "optim.least": (0.0, f"{_ADAMW}: get_cosine_schedule_with_warmup"),
        "optim.grad_clip": (1.0, _MAIN),
        "data.batch_size": (128, f"{_MAIN}: --batch_size"),
        "data.max_tokens": (32, f"{_MAIN}: --max_words"),
        "evaluation.select": ("best", f"{_MAIN}: the best epoch on the test videos"),
    },
)


@dataclass(frozen=True, kw_only=True)
class AdaptedConfig:
    """Settings that the four methods lora, prompt, adapter and tempme share."""

    UNPUBLISHED: ClassVar[tuple[str, ...]] = ("optim.weight_decay", "optim.warmup", "optim.decay_parameters")

    lr: float = setting(6e-4, doc="learning rate of all weights added to CLIP", part="recipe")
    reducer: ReducerConfig = group(TRAINED_REDUCERS, "none", doc="token reduction in the vision tower")
    train_positions: Literal["all", "first"] = setting(
        "all", doc="tasks that train the clip positions. all: every task; first: the first task only"
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")


class Adaptation(nn.Module):
    """Base class of trained additions to the blocks of both towers; this class adds nothing."""

    def __init__(self, backbone: Clip) -> None:
        super().__init__()
        self.depths = len(backbone.vision.blocks), len(backbone.text.blocks)

    def vision_seams(self, backbone: Clip) -> Sequence[BlockSeams]:
        """Return one `BlockSeams` for each block of the vision tower."""
        return [BlockSeams()] * self.depths[0]

    def text_seams(self, backbone: Clip) -> Sequence[BlockSeams]:
        """Return one `BlockSeams` for each block of the text tower."""
        return [BlockSeams()] * self.depths[1]


class JointLoRA(Adaptation):
    """LoRA on the fused q, k, v projection of every block: A (r, D) for all three, B (3D, r), factor 1.

    The paper prints 0.49 M parameters, which only this form has; its appendix A has one pair A, B for each projection.
    LoRA is merged into frozen weights where possible, so its multiply-adds are counted as zero, as in the paper.
    """

    def __init__(self, backbone: Clip, rank: int) -> None:
        super().__init__(backbone)
        self.vision = _make_joint(backbone.vision.width, self.depths[0], rank)
        self.text = _make_joint(backbone.text.width, self.depths[1], rank)

    def vision_seams(self, backbone: Clip) -> list[BlockSeams]:
        return list(map(_make_seams, self.vision))  # type: ignore[arg-type]

    def text_seams(self, backbone: Clip) -> list[BlockSeams]:
        return list(map(_make_seams, self.text))  # type: ignore[arg-type]


def _make_seams(lora: LoRA) -> BlockSeams:
    return BlockSeams(qkv=partial(_add_low_rank, lora), fold=lora.merged_delta)


def _add_low_rank(lora: LoRA, y: Tensor, qkv: Tensor, state: TokenState) -> Tensor:
    """Add B A y (G, N, 3D) to qkv in place, which costs less than a separate sum; only the block reads qkv."""
    low = F.linear(y, lora.A).flatten(0, -2)  # (G * N, r)
    qkv.flatten(0, -2).addmm_(low, lora.B.mT.to(low.dtype), alpha=lora.scale)
    return qkv


def _make_joint(width: int, blocks: int, rank: int) -> nn.ModuleList:
    return nn.ModuleList(LoRA(rank, rank, width, 3 * width) for _ in range(blocks))


class AdaptedClip(Method):
    """Base class of methods that consist of frozen CLIP, an adaptation of both towers, and a token reducer."""

    @classmethod
    def capabilities(cls, config: AdaptedConfig) -> Capabilities:
        return Capabilities(
            accumulation="features", uses_all_parameters=True, required_num_frames=config.reducer.required_num_frames
        )

    def __init__(self, config: AdaptedConfig, backbone: Clip, adaptation: Adaptation) -> None:
        super().__init__()
        self.config, self.backbone, self.adaptation = config, backbone, adaptation
        self.reducer = make_reducer(config.reducer, backbone.vision)
        self.train_positions = True

    def begin_task(self, task: Task) -> None:
        self.train_positions = self.config.train_positions == "all" or task.index == 0
        if isinstance(self.reducer, DiffRateSearch):
            self.reducer.is_searching = task.index == 0

    def param_groups(self) -> list[ParamGroup]:
        if isinstance(self.reducer, DiffRateSearch):  # neither CLIP nor the adaptation is trained
            reducer = self.config.reducer
            assert isinstance(reducer, SearchedDiffRateConfig)
            rates = ParamGroup(name="rates", params=list(self.reducer.parameters()), lr=reducer.lr_rates)
            return [{**rates, "decay": "matrices"}] if self.reducer.is_searching else []
        groups = [ParamGroup(name="adaptation", params=list(self.adaptation.parameters()), lr=self.config.lr)]
        if self.train_positions:
            groups.append(ParamGroup(name="positions", params=list(self.reducer.parameters()), lr=self.config.lr))
        return [group for group in groups if group["params"]]

    def encode_frames(self, frames: Tensor) -> Tensor:
        """Encode each frame, in temporal order: (B, T, 3, H, W) -> (B, T, d), not normalized."""
        seams = combine(self.reducer.seams(), self.adaptation.vision_seams(self.backbone))
        return self.backbone.vision(frames, seams)

    def encode_video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.encode_frames(frames), "l2")

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens, self.adaptation.text_seams(self.backbone)))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        if isinstance(self.reducer, DiffRateSearch) and self.reducer.is_searching:
            terms["macs"] = self.reducer.penalty()
        return terms

    def task_metrics(self) -> dict[str, float]:
        """Return the result of a search for DiffRate's reduction rates; it is empty without such a search.

        `prune_to` (K_p) and `merge_to` (K_m) of a block are numbers of tokens. `frame_gmacs` is the number of
        multiply-adds of a frame in 10^9.
        """
        if not isinstance(self.reducer, DiffRateSearch):
            return {}
        found = {"frame_gmacs": float(self.reducer.macs()) / 1e9}
        for block, (prune, merge) in enumerate(self.reducer.counts()):
            found |= {f"prune_to/{block:02d}": float(prune), f"merge_to/{block:02d}": float(merge)}
        return found

    def after_step(self) -> None:
        self.reducer.after_step()
