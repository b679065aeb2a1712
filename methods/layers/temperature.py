"""CLIP's temperature as a setting: the initial value of 1 / temperature = exp(logit_scale), its bounds and its
training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.settings import SettingError, require, setting


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """Settings of retrievers that train all of CLIP. The bounds are those of CTVR's released code."""

    train_scale: bool = setting(True, doc="training of CLIP's temperature")
    start_scale: float | None = setting(None, doc="initial 1 / temperature; none: CLIP's own, 100", part="loss")
    min_scale: float = setting(
        1.0, doc="lower bound of 1 / temperature after each step; 0: without a bound", part="recipe"
    )
    max_scale: float = setting(200.0, doc="upper bound of 1 / temperature after each step", part="recipe")

    def __post_init__(self) -> None:
        require(self, ">= 1", "max_scale", hint="CLIP uses 100.")
        if not 0 <= self.min_scale <= self.max_scale:
            raise SettingError(
                f"<min_scale> must lie between 0 and <max_scale>={self.max_scale}, got {self.min_scale}",
                "Use 0 for none.",
            )
        require(self, "in (0, inf)", "start_scale", hint="CLIP's is 100.")


def set_scale(clip: Clip, config: ScaleConfig) -> None:
    """Set the temperature to its initial value."""
    if config.start_scale is not None:
        with torch.no_grad():
            clip.logit_scale.fill_(math.log(config.start_scale))


def bound_scale(clip: Clip, config: ScaleConfig) -> None:
    """Clamp the temperature to its bounds."""
    with torch.no_grad():
        least = math.log(config.min_scale) if config.min_scale else -math.inf
        clip.logit_scale.clamp_(least, math.log(config.max_scale))
