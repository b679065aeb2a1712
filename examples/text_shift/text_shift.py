"""Example of a method in another package: CLIP with one trained shift, which is added to the features of captions.

q = unit(CLIP(caption) + s),   where the shift s (d,) is initially zero, so the untrained method is zero-shot CLIP
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr import Method, setting
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import ParamGroup, l2_normalize
from ctvr.methods.layers.pooling import mean_pool


@dataclass(frozen=True, kw_only=True)
class TextShiftConfig:
    """Settings of TextShift; `ctvr methods text_shift` prints them, and arguments such as method.lr=1e-4 set them."""

    lr: float = setting(1e-4, doc="learning rate of the shift")


class TextShift(Method):
    """Frozen CLIP with one trained shift (d,) of the features of captions."""

    Config = TextShiftConfig

    def __init__(self, config: TextShiftConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.shift = nn.Parameter(torch.zeros(backbone.embed_dim))

    def param_groups(self) -> list[ParamGroup]:
        return [{"name": "shift", "params": [self.shift], "lr": self.config.lr}]

    def encode_video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames), "none")

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens).float() + self.shift)


def manifest() -> str:
    """Return the path of the manifest of the stream `two_colours`."""
    return os.environ["TWO_COLOURS"]
