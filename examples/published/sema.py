"""SEMA: adapters that a block adds only if the data of a new task differs from the data of all earlier tasks.

Wang et al., "Self-Expansion of Pre-trained Models with Mixture of Adapters", arXiv:2403.18886:

    MLP(x) + sum of w_k adapter_k(x),  w = softmax(router m)      Sec. 3.4; m: mean of the tokens x of an image
    loss = L + mean of (m - descriptor_k(m))^2                    Sec. 3.3; a descriptor is a linear autoencoder
    z = (error - mean) / deviation                                Sec. 3.6; error of a descriptor, standardized

A task adds an adapter to a block if z exceeds a threshold for all descriptors of the block; otherwise nothing is
trained in the block. `begin_task` adds a candidate (adapter and descriptor) to each block; `prepare_task` selects
candidates, and a buffer stores the selection. The use of m instead of x is from the authors' code. What we changed: all
blocks decide at the same time, from the mean of z over a task, and only the last `depth` blocks have adapters. Mean and
deviation are measured after the training. The authors' code averages |z| over a batch, gives x to adapters before the
LayerNorm, adds biases to router and adapters, and trains descriptors after the adapters. Captions are encoded by CLIP.
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
    """Settings of SEMA."""

    lr: float = setting(1e-3, doc="learning rate")
    width: int = setting(8, doc="hidden width of adapters and descriptors")
    depth: int = setting(2, doc="number of the last vision blocks, which have adapters", depth=True)
    threshold: float = setting(
        1.0, doc="z-score above which a block adds an adapter; 2 in the authors' code", later=True
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")
        require(self, ">= 1", "width", "depth")


class Candidate(nn.Module):
    """Adapter with its descriptor, its row of the router, and the statistics of the descriptor's error."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        nn.init.zeros_(self.up.weight)
        self.descriptor = nn.Sequential(nn.Linear(width, inner), nn.Linear(inner, width))
        self.row = nn.Parameter(torch.zeros(width))
        self.register_buffer("is_used", torch.tensor(False))
        self.register_buffer("errors", torch.zeros(2))  # deviation and mean over the frames of its task

    def error(self, x: Tensor) -> Tensor:
        return (x - self.descriptor(x)).square().mean(-1)


class Sema(Method):
    """Frozen CLIP with mixtures of adapters; a task adds adapters to blocks in which its data differs."""

    Config = SemaConfig

    def __init__(self, config: SemaConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.blocks = nn.ModuleList(nn.ModuleList() for _ in backbone.vision.blocks[-config.depth :])  # K candidates

    @classmethod
    def capabilities(cls, config: SemaConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True)

    def begin_task(self, task: Task) -> None:
        for block in self.blocks:
            block.append(Candidate(self.backbone.vision.width, self.config.width))

    @torch.no_grad()
    def prepare_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for block, x in zip(self.blocks, self._read(loader)):
            scores = [(each.error(x).mean() - each.errors[1]) / each.errors[0] for each in block if each.is_used]
            block[-1].is_used.fill_(all(z > self.config.threshold for z in scores))

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for block, x in zip(self.blocks, self._read(loader)):
            block[-1].errors.copy_(torch.stack(torch.std_mean(block[-1].error(x))).clamp(min=1e-6))

    def _read(self, loader: Iterable[Batch]) -> list[Tensor]:
        passes = []
        for batch in loader:
            self.encode_video(batch.frames)  # sets `inputs`
            passes.append(self.inputs)
        return [torch.cat(x) for x in zip(*passes)]

    def param_groups(self) -> list[ParamGroup]:
        added = [p for block in self.blocks if block[-1].is_used for p in block[-1].parameters()]
        return [{"name": "added", "params": added, "lr": self.config.lr}] if added else []

    def _mix(self, block: nn.ModuleList, x: Tensor, output: Tensor, state: TokenState) -> Tensor:
        self.inputs.append(x.mean(1).detach())
        if not (used := [each for each in block if each.is_used]):
            return output
        weights = F.softmax(x.mean(1, keepdim=True) @ torch.stack([each.row for each in used]).mT, dim=-1)
        return output + sum(w * each.up(F.relu(each.down(x))) for w, each in zip(weights.split(1, -1), used))

    def encode_video(self, frames: Tensor) -> Tensor:
        self.inputs: list[Tensor] = []  # m of each block's adapters, (B*T, D)
        seams = [BlockSeams(mlp=partial(self._mix, block)) for block in self.blocks]
        first = [None] * (len(self.backbone.vision.blocks) - len(seams))
        return mean_pool(self.backbone.vision(frames, [*first, *seams]))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        errors = [block[-1].error(x).mean() for block, x in zip(self.blocks, self.inputs) if block[-1].is_used]
        return {**terms, "descriptor": torch.stack(errors).sum()} if errors else terms
