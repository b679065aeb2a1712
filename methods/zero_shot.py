"""Zero-shot CLIP: the untrained baseline (Radford et al., arXiv:2103.00020; row "Zero-Shot CLIP" of CTVR, table 1).

f = CLIP(frame), v = mean of f over frames, at unit length; q = CLIP(caption), at unit length; S = q v^T.
Weights are not trained, so stored features never become outdated and backward forgetting is exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Capabilities, Method, Override, l2_normalize
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.settings import setting


@dataclass(frozen=True, kw_only=True)
class ZeroShotConfig:
    """Settings of zero-shot CLIP. Published tables differ in `frame_norm`, which changes the second decimal."""

    frame_norm: Literal["none", "l2"] = setting(
        "none", doc="normalization of each frame's feature before the mean; CTVR: none, CLIP4Clip: l2"
    )
    is_chance: bool = setting(
        False, doc="whether all videos get equal scores, so that R@k equals that of a random order (a control)"
    )


class ZeroShot(Method):
    """Frozen CLIP, whose frame features are averaged."""

    Config = ZeroShotConfig
    PRESETS = {"chance": Override({"method.is_chance": True})}  # a control, not in the paper

    @classmethod
    def capabilities(cls, config: ZeroShotConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, text_is_frozen=True)

    def __init__(self, config: ZeroShotConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)

    def encode_video(self, frames: Tensor) -> Tensor:
        features = mean_pool(self.backbone.vision(frames), self.config.frame_norm)
        return features.new_zeros(features.shape) if self.config.is_chance else features

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))
