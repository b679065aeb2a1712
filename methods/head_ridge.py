"""Closed-form caption head on frozen towers: ridge regression from captions to their videos, accumulated over tasks.

x and y are unit features of the n training captions so far and of their videos. h(x) is relu(x R) with a random matrix
R, or x if `features` is 0. H (n, h) and Y (n, d) have the rows h(x) and y, minus their means:

    W = (H'H + ridge I)^-1 H'Y,     q = unit((h(x) - mean) W)

Y is centered because the mean of all videos does not depend on the query. W follows from sums over pairs, so the order
of tasks does not change the result and the head does not forget. It is the baseline for heads that are trained task by
task. Random features are those of RanPAC (McDonnell et al., arXiv:2307.02251, section 3), which regresses to classes;
here the targets are the features of videos, which do not change.

Shapes: n pairs, B captions, h width of h(x), d width of a video, d' width of a caption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Capabilities, Method, Task, l2_normalize
from ctvr.methods.heads import caption_vectors, initial_maps, video_vectors
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class HeadRidgeConfig:
    """Settings of the ridge head, with ranges in search_spaces/. None is published for retrieval."""

    UNPUBLISHED = ("method.ridge", "method.features")

    ridge: float = setting(10.0, doc="weight of the penalty |W|^2 on the map W in the loss")
    features: int = setting(0, doc="number h of random features; 0: the caption's feature itself")
    frame_norm: Literal["none", "l2"] = setting("none", doc="normalization of each frame's feature before the mean")

    def __post_init__(self) -> None:
        require(self, "> 0", "ridge", hint="Use 10.")
        require(self, ">= 0", "features", hint="RanPAC uses 10000.")


class HeadRidge(Method):
    """Frozen towers with a head that maps captions by a ridge regression over all training pairs so far."""

    Config = HeadRidgeConfig
    PRESETS = {"ranpac": {"method.features": 2000}}
    config: HeadRidgeConfig
    moments: Tensor  # (1 + h, 1 + h + d) float64: sum over pairs of the outer product of [1, h] and [1, h, y]
    weight: Tensor  # (h, d)
    center: Tensor  # (h,)
    random: Tensor  # (d', h)

    @classmethod
    def capabilities(cls, config: HeadRidgeConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, learns_in_end_task=True)

    def __init__(self, config: HeadRidgeConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)
        start, center = initial_maps(backbone)[0]
        width, d = start.shape
        count = config.features or width
        self.register_buffer("random", torch.randn(width, config.features))
        self.register_buffer("moments", torch.zeros(1 + count, 1 + count + d, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(count, d) if config.features else start.clone())
        self.register_buffer("center", torch.zeros(count) if config.features else center.clone())

    def encode_video(self, frames: Tensor) -> Tensor:
        return mean_pool(video_vectors(self.backbone, frames), self.config.frame_norm)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        h = self._features(caption_vectors(self.backbone, tokens))
        return l2_normalize((h - self.center) @ self.weight)

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Add the pairs of the task to the sums, and solve the regression again; every worker receives all pairs."""
        for batch in loader:
            left = F.pad(self._features(caption_vectors(self.backbone, batch.tokens)).double(), (1, 0), value=1.0)
            self.moments += left.mT @ torch.cat([left, self.encode_video(batch.frames).double()], dim=1)
        count = self.moments[0, 0].clamp_min(1.0)
        centred = self.moments - self.moments[:, :1] * self.moments[:1] / count
        gram, cross = centred[1:, 1 : len(self.moments)], centred[1:, len(self.moments) :]
        ridge = self.config.ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        self.weight.copy_(torch.linalg.solve(gram + ridge, cross))
        self.center.copy_(self.moments[0, 1 : len(self.moments)] / count)

    def _features(self, x: Tensor) -> Tensor:
        return F.relu(x @ self.random) if self.config.features else x
