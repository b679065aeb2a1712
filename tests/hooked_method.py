"""A retriever that uses every hook of the training: it reads a task first, combines terms, and has its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ctvr import Batch, Position, Task
from ctvr.methods.clip4clip import Clip4Clip

RHO = 0.05


class Sam(torch.optim.SGD):
    """Sharpness-aware minimization (Foret et al., arXiv:2010.01412, eq. 2 and 3) over SGD."""

    def __init__(self, groups: list[dict[str, Any]], recompute: Callable[[], None]) -> None:
        super().__init__(groups, momentum=0.9)
        self.recompute = recompute

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        weights = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in weights]).norm()
        former = [p.clone() for p in weights]
        for p in weights:
            p.add_(p.grad, alpha=float(RHO / norm))
        self.recompute()
        for p, value in zip(weights, former):
            p.copy_(value)
        super().step()


class Hooked(Clip4Clip):
    """CLIP that is pulled to a task's mean video, by a weight that grows with the position in training."""

    mean: Tensor  # (d,) of the task's videos before its training
    calls: Tensor  # (2,) of prepare_task and set_position

    def __init__(self, config: Any, backbone: Any) -> None:
        super().__init__(config, backbone)
        self.register_buffer("mean", torch.zeros(backbone.embed_dim))
        self.register_buffer("calls", torch.zeros(2))
        self.positions: list[Position] = []

    @torch.no_grad()
    def prepare_task(self, task: Task, loader: Iterable[Batch]) -> None:
        self.mean = torch.cat([self.encode_video(batch.frames) for batch in loader]).mean(dim=0)
        self.calls[0] += 1

    def set_position(self, position: Position) -> None:
        self.positions.append(position)
        self.calls[1] += 1

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        done = self.positions[-1].step / self.positions[-1].steps if self.positions else 0.0
        pull = (self.encode_video(batch.frames) - self.mean).square().sum(dim=1).mean()
        return {**super().losses(batch), "pull": (0.5 + done) * pull}

    def combine_gradients(self, gradients: dict[str, Tensor]) -> Tensor:
        g, r = gradients["contrastive"], gradients["pull"]
        return g - (g @ r).clamp(max=0) / (r @ r) * r + r

    def make_optimizer(self, groups: list[dict[str, Any]], recompute: Callable[[], None]) -> torch.optim.Optimizer:
        return Sam(groups, recompute)
