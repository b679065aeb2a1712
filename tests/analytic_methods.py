"""Retrievers that learn without gradients, in `end_task`, as a plug-in writes them; tests name them `module:Class`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr import Batch, Method, Task, setting
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Capabilities, l2_normalize
from ctvr.methods.layers.pooling import mean_pool

SPACE = {"method.ridge": [0.1, 1.0, 10.0, 100.0]}


@dataclass(frozen=True, kw_only=True)
class RidgeConfig:
    """Settings of `Ridge`."""

    ridge: float = setting(10.0, doc="weight of the penalty")
    strength: float = setting(1.0, doc="share of the map in a video's feature")


@dataclass(frozen=True, kw_only=True)
class RanPacConfig(RidgeConfig):
    """Settings of `RanPac`."""

    width: int = setting(32, doc="random features of a video")


class RanPac(Method):
    """Ridge regression from random features of videos to captions, as RanPAC (NeurIPS 2023) learns classes.

    h = relu(P v), G = sum h h^T, C = sum h q^T, W = (G + ridge I)^-1 C; a video is unit(v + strength unit(W^T h)).
    """

    Config = RanPacConfig
    PRESETS = {"paper": {}}

    @classmethod
    def capabilities(cls, config: RanPacConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, text_is_frozen=True)

    def __init__(self, config: RanPacConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)
        d, m = backbone.embed_dim, config.width
        self.register_buffer("projection", torch.randn(m, d))
        for name, shape in {"gram": (m, m), "cross": (m, d), "map": (m, d)}.items():
            self.register_buffer(name, torch.zeros(shape))

    def _video(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        v = mean_pool(self.backbone.vision(frames), "none")
        return v, torch.relu(v @ self.projection.T)

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for batch in loader:
            h, q = self._video(batch.frames)[1], self.encode_text(batch.tokens)
            self.gram += h.T @ h
            self.cross += h.T @ q
        eye = torch.eye(len(self.gram), device=self.gram.device)
        self.map = torch.linalg.solve((self.gram + self.config.ridge * eye).double(), self.cross.double()).float()

    def encode_video(self, frames: Tensor) -> Tensor:
        v, h = self._video(frames)
        return l2_normalize(v + self.config.strength * l2_normalize(h @ self.map) * self.map.any())

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens).float())


class Ridge(Method):
    """Ridge regression from features of videos to captions, without random features."""

    Config = RidgeConfig
    PRESETS = {"paper": {}}

    @classmethod
    def capabilities(cls, config: RidgeConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, text_is_frozen=True)

    def __init__(self, config: RidgeConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        d = backbone.embed_dim
        for name in ("gram", "cross", "map"):
            self.register_buffer(name, torch.zeros(d, d))

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        for batch in loader:
            v = mean_pool(self.backbone.vision(batch.frames), "none")
            self.gram += v.T @ v
            self.cross += v.T @ self.encode_text(batch.tokens)
        eye = torch.eye(len(self.gram), device=self.gram.device)
        self.map = torch.linalg.solve((self.gram + self.config.ridge * eye).double(), self.cross.double()).float()

    def encode_video(self, frames: Tensor) -> Tensor:
        v = mean_pool(self.backbone.vision(frames), "none")
        return l2_normalize(v + self.config.strength * l2_normalize(v @ self.map) * self.map.any())

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens).float())
