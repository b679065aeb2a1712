"""SEMA: adapters that a block adds only if the data of a new task differs from the data of all earlier tasks.

Wang et al., "Self-Expansion of Pre-trained Models with Mixture of Adapters", arXiv:2403.18886:

    y + sum of w_k adapter_k(x),   w = softmax(router x)         mixture
    each adapter has a descriptor, an autoencoder of its inputs; loss = L + mean of (x - descriptor(x))^2
    a block adds an adapter if z = (error - mean) / deviation exceeds a threshold for all of its descriptors

`begin_task` adds a candidate to each block; `prepare_task` selects candidates, and a buffer keeps the selection.
What we changed: all blocks decide at the same time, adapters are in the last vision blocks, and captions are encoded by
CLIP.
Shapes: K candidates so far, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr import (
    Batch,
    BlockSeams,
    Capabilities,
    Clip,
    Method,
    ParamGroup,
    Task,
    TokenState,
    l2_normalize,
    mean_pool,
    require,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class SemaConfig:
    """Settings."""

    lr: float = setting(1e-3, doc="learning rate")
    width: int = setting(8, doc="hidden width of adapters and descriptors")
    depth: int = setting(2, doc="number of the last vision blocks, which have adapters", depth=True)
    threshold: float = setting(1.0, doc="z-score above which a block adds an adapter", later=True)

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")
        require(self, ">= 1", "width", "depth")


class Candidate(nn.Module):
    """An adapter with its descriptor and its row of the router."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        nn.init.zeros_(self.up.weight)
        self.descriptor = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
        self.row = nn.Parameter(torch.zeros(width))
        self.register_buffer("is_used", torch.tensor(False))
        self.register_buffer("errors", torch.zeros(2))  # mean and standard deviation over the frames of its task

    def error(self, x: Tensor) -> Tensor:
        return (x - self.descriptor(x)).square().mean(-1)


class Sema(Method):
    """Frozen CLIP with a mixture of adapters, to which a task adds adapters if its data is new."""

    Config = SemaConfig

    def __init__(self, config: SemaConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.depth = min(config.depth, len(backbone.vision.blocks))
        self.blocks = nn.ModuleList(nn.ModuleList() for _ in range(self.depth))  # K candidates in each block

    @classmethod
    def capabilities(cls, config: SemaConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True)

    def begin_task(self, task: Task) -> None:
        for block in self.blocks:
            block.append(Candidate(self.backbone.vision.width, self.config.width))

    @torch.no_grad()
    def prepare_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for block, x in zip(self.blocks, self._read(loader)):
            known = [(each.error(x).mean() - each.errors[0]) / each.errors[1] for each in _used(block)]
            block[-1].is_used.fill_(all(z > self.config.threshold for z in known))

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for block, x in zip(self.blocks, self._read(loader)):
            error = block[-1].error(x)
            block[-1].errors.copy_(torch.stack([error.mean(), error.std().clamp(min=1e-6)]))

    def _read(self, loader: Iterable[Batch]) -> list[Tensor]:
        return [torch.cat(x) for x in zip(*[(self.encode_video(b.frames), self.inputs)[1] for b in loader])]

    def param_groups(self) -> list[ParamGroup]:
        added = [p for block in self.blocks if block[-1].is_used for p in block[-1].parameters()]
        return [{"name": "added", "params": added, "lr": self.config.lr}] if added else []

    def _mix(self, block: nn.ModuleList, x: Tensor, output: Tensor, state: TokenState) -> Tensor:
        self.inputs.append(x[:, 0].detach())
        if not (used := _used(block)):
            return output
        weights = F.softmax(x @ torch.stack([each.row for each in used]).mT, dim=-1)
        return output + sum(w * each.up(F.relu(each.down(x))) for w, each in zip(weights.split(1, -1), used))

    def encode_video(self, frames: Tensor) -> Tensor:
        self.inputs: list[Tensor] = []  # class tokens (B*T, D) that enter each block's adapters
        seams = [BlockSeams(mlp=partial(self._mix, block)) for block in self.blocks]
        first = [None] * (len(self.backbone.vision.blocks) - self.depth)
        return mean_pool(self.backbone.vision(frames, [*first, *seams]))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        errors = [block[-1].error(x).mean() for block, x in zip(self.blocks, self.inputs) if block[-1].is_used]
        return {**terms, "descriptor": torch.stack(errors).sum()} if errors else terms


def _used(block: nn.ModuleList) -> list[Candidate]:
    return [each for each in block if each.is_used]
