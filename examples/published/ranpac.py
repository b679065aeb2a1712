"""RanPAC: training by gradients in the first task, then ridge regression from random features in every task.

McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning", arXiv:2307.02251:

    h = relu(P v),   G <- G + sum h h',   C <- C + sum h q'       v: feature of a video, P: random matrix
    W = (G + lambda I)^-1 C            lambda: of 10^-8, ..., 10^8, the best one for a held-out fifth of the new task

What we changed: targets q are features of captions instead of classes, and a video is encoded as
unit(v + strength unit(W' h)). v is normalized. The first task trains LayerNorms instead of adapters, scales and shifts,
or prompts. Every fifth pair is held out; the authors' code shuffles the pairs and holds out the last fifth. Shapes: B
pairs, M random features, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr import Batch, Capabilities, Clip, Method, ParamGroup, Task, l2_normalize, mean_pool, require, setting

PENALTIES = [10.0**power for power in range(-8, 9)]


@dataclass(frozen=True, kw_only=True)
class RanPacConfig:
    """Settings of RanPAC."""

    lr: float = setting(3e-5, doc="learning rate in the first task")
    width: int = setting(256, doc="number M of random features; the paper uses 10,000")
    strength: float = setting(1.0, doc="weight of the regression's output in the feature of a video")

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", "strength")
        require(self, ">= 1", "width")


class RanPac(Method):
    """CLIP that is trained in the first task, with a map of videos that ridge regression updates after every task."""

    Config = RanPacConfig

    @classmethod
    def capabilities(cls, config: RanPacConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True, uses_all_parameters=True, learns_in_end_task=True)

    def __init__(self, config: RanPacConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone, self.is_first = config, backbone, True
        d, m = backbone.embed_dim, config.width
        self.register_buffer("projection", torch.randn(m, d))
        for name, shape in {"gram": (m, m), "cross": (m, d), "map": (m, d)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def begin_task(self, task: Task) -> None:
        self.is_first = task.index == 0

    def param_groups(self) -> list[ParamGroup]:
        norms = [module for module in self.backbone.vision.modules() if isinstance(module, nn.LayerNorm)]
        trained = [p for norm in norms for p in norm.parameters()]
        return [{"name": "norms", "params": trained, "lr": self.config.lr}] if self.is_first else []

    def _random(self, v: Tensor) -> Tensor:
        return torch.relu(v @ self.projection.mT)

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        pairs = [(self._random(self._video(b.frames)).double(), self.encode_text(b.tokens).double()) for b in loader]
        h, q = (torch.cat(part) for part in zip(*pairs))
        self.gram += h.mT @ h
        self.cross += h.mT @ q
        self.map.copy_(_solve(self.gram, self.cross, _penalty(h, q)))

    def _video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames))

    def encode_video(self, frames: Tensor) -> Tensor:
        v = self._video(frames)
        moved = l2_normalize(self._random(v) @ self.map.float()) * self.map.any()
        return l2_normalize(v + self.config.strength * moved)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))


def _penalty(h: Tensor, q: Tensor) -> float:
    """Return the penalty lambda whose W has the smallest error on every fifth pair of h (B, M) and q (B, d)."""
    held = torch.arange(len(h), device=h.device) % 5 == 0
    gram, cross = h[~held].mT @ h[~held], h[~held].mT @ q[~held]
    errors = {x: (h[held] @ _solve(gram, cross, x) - q[held]).square().sum().item() for x in PENALTIES}
    return min(errors, key=errors.__getitem__)


def _solve(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    return torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=gram.dtype, device=gram.device), cross)
