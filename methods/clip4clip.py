"""CLIP4Clip, mean pooling: all of CLIP fine-tuned on one task after the other.

Luo et al., "CLIP4Clip: An Empirical Study of CLIP for End to End Video Clip Retrieval",
arXiv:2104.08860, sections 3.2 (meanP) and 3.3 (loss); in CTVR (arXiv:2503.10111) the plain sequential
baseline. What CTVR changed: frames are averaged without normalising each, and the batch is small.
Its learning rate is published nowhere: 1e-6 is the default of CTVR's released configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from methods.base import Batch, Method, ParamGroup, unit
from methods.layers.clip import Clip
from methods.layers.gather import gather
from methods.layers.losses import contrastive
from methods.layers.pooling import mean_pool


@dataclass(frozen=True, kw_only=True)
class Clip4ClipConfig:
    """Tuned by search_spaces/clip4clip.py."""

    lr: float = 1e-6  # both towers
    frame_norm: Literal["none", "l2"] = "none"
    loss_reduction: Literal["mean", "sum"] = "mean"
    train_scale: bool = True  # learn CLIP's temperature too, clamped to [1, 200]
    mask_same_video: bool = False  # other captions of the same video are no negatives

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr must be >= 0, got {self.lr}. Use lr=0 for the zero-shot model.")


class Clip4Clip(Method):
    """Mean-pooled CLIP, fully fine-tuned."""

    Config = Clip4ClipConfig
    PRESETS = {
        "paper": {},
        "released": {"method.loss_reduction": "sum", "optim.num_cycles": 1.0, "optim.decay_bias_and_norm": True},
        "original": {"method.frame_norm": "l2"},  # pooling of arXiv:2104.08860
        "shapes": {"method.lr": 4e-6},  # with optim.lr_scale=50: 2e-4, which suits the small backbone
    }

    def __init__(self, config: Clip4ClipConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone

    def param_groups(self) -> list[ParamGroup]:
        parameters = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
        if self.config.train_scale:
            parameters.append(self.backbone.logit_scale)
        return [ParamGroup(name="clip", params=parameters, lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames), self.config.frame_norm)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return unit(self.backbone.text(tokens))

    def scale(self) -> Tensor:
        return self.backbone.logit_scale.exp()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        videos = gather(batch.videos) if self.config.mask_same_video else None
        return {"contrastive": contrastive(self.logits(batch), self.config.loss_reduction, videos)}

    def after_step(self) -> None:
        with torch.no_grad():
            self.backbone.logit_scale.clamp_(0.0, math.log(200.0))
