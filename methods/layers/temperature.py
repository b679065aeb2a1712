"""CLIP's temperature as a setting: where 1 / temperature = exp(logit_scale) begins, and whether it learns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from methods.backbone.clip import Clip


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """Settings of retrievers that train all of CLIP."""

    train_scale: bool = True  # learn CLIP's temperature too
    start_scale: float | None = None  # 1 / temperature at the start; None: CLIP's own, 100

    def __post_init__(self) -> None:
        if self.start_scale is not None and not 0 < self.start_scale < math.inf:
            raise ValueError(f"start_scale is 1 / temperature and must be > 0, got {self.start_scale}. CLIP's is 100.")


def set_scale(clip: Clip, config: ScaleConfig) -> None:
    """Put the temperature where it begins."""
    if config.start_scale is not None:
        with torch.no_grad():
            clip.logit_scale.fill_(math.log(config.start_scale))


def bound_scale(clip: Clip, greatest: float = 200.0) -> None:
    """Bring 1 / temperature back between 1 and `greatest`."""
    with torch.no_grad():
        clip.logit_scale.clamp_(0.0, math.log(greatest))
