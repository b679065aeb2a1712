"""InfLoRA: LoRA whose input subspace is computed from the data of a task before its training.

Liang and Li, "InfLoRA: Interference-Free Low-Rank Adaptation for Continual Learning", arXiv:2404.00228:

    W_t = W + sum over i <= t of A_i B_i                  B_t (r, D) is fixed and A_t (D, r) is trained
    B_t = the r main directions of (I - M M') H_t, / sqrt(3)    H_t: inputs of the layer for the new task
    M: main directions of earlier tasks' inputs, with the share `energy` of their squares    GPM, arXiv:2103.09762

LoRA is on k and v, and B_t is divided by sqrt(3), as in the authors' code. What we changed: only the vision tower is
trained, and captions are encoded by CLIP. M grows as in GPM, without the second memory for large M (DualGPM). The
authors' code raises `energy` linearly to 1 over the tasks, computes directions from H H' instead of H, and keeps one
direction fewer after the first task. Shapes: D width, r rank.
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
class InfLoraConfig:
    """Settings of InfLoRA."""

    lr: float = setting(1e-3, doc="learning rate")
    rank: int = setting(4, doc="rank r of a task's LoRA")
    energy: float = setting(0.9, doc="share of the energy (sum of squares) of the inputs that M keeps", later=True)

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")
        require(self, ">= 1", "rank")
        require(self, "in [0, 1)", "energy", hint="Use 0.9.")


class InfLora(Method):
    """Frozen CLIP with a LoRA for each task that hardly changes the outputs for inputs of earlier tasks."""

    Config = InfLoraConfig

    @classmethod
    def capabilities(cls, config: InfLoraConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True, uses_all_parameters=True)

    def __init__(self, config: InfLoraConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.up = nn.ParameterList()  # A_t of k and v in every block, (blocks, 2, D, r)
        depth, width = len(backbone.vision.blocks), backbone.vision.width
        self.register_buffer("known", torch.zeros(depth, width, width))  # M M'
        self.moments: Tensor | None = None  # (blocks, D, D) sums of H H', while a task's data is read

    def begin_task(self, task: Task) -> None:
        depth, width, _ = self.known.shape
        self.up.append(torch.zeros(depth, 2, width, self.config.rank))
        self.register_buffer(f"down{task.index}", torch.zeros(depth, self.config.rank, width))  # B_t

    @torch.no_grad()
    def prepare_task(self, task: Task, loader: Iterable[Batch]) -> None:
        _, directions = torch.linalg.eigh(self._unknown(loader))
        self.get_buffer(f"down{task.index}").copy_(directions[:, :, -self.config.rank :].mT / 3**0.5)

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        unknown = self._unknown(loader)
        values, directions = torch.linalg.eigh(unknown)
        total = self.energies
        for block, (value, columns) in enumerate(zip(values.flip(1), directions.flip(2))):
            inside = total[block] - value.sum()  # energy of the inputs in the directions of M
            kept = columns[:, inside + value.cumsum(0) - value < self.config.energy * total[block]]
            self.known[block] += (kept @ kept.mT).float()

    def _unknown(self, loader: Iterable[Batch]) -> Tensor:
        """Return (I - M M') H H' (I - M M') of every block, (blocks, D, D); set `energies` to sums of squares of H."""
        self.moments = torch.zeros_like(self.known, dtype=torch.float64)
        for batch in loader:
            self.encode_video(batch.frames)
        moments, self.moments = self.moments, None
        self.energies = moments.diagonal(dim1=1, dim2=2).sum(1)
        rest = torch.eye(moments.shape[1], device=moments.device) - self.known
        return rest.double() @ moments @ rest.double()

    def _add(self, block: int, place: int, x: Tensor, projected: Tensor, state: TokenState) -> Tensor:
        if self.moments is not None and place:
            rows = x.flatten(0, -2).double()
            self.moments[block] += rows.mT @ rows
        for number, up in enumerate(self.up):
            projected = projected + F.linear(F.linear(x, self.get_buffer(f"down{number}")[block]), up[block, place])
        return projected

    def encode_video(self, frames: Tensor) -> Tensor:
        blocks = range(len(self.backbone.vision.blocks))
        seams = [BlockSeams(k=partial(self._add, block, 0), v=partial(self._add, block, 1)) for block in blocks]
        return mean_pool(self.backbone.vision(frames, seams))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def param_groups(self) -> list[ParamGroup]:
        return [{"name": "lora", "params": [self.up[-1]], "lr": self.config.lr}]
