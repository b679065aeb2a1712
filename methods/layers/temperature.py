"""Settings of CLIP's temperature: initial value, bounds and training of exp(logit_scale) = 1 / temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.settings import SettingError, require, setting


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """Temperature settings of retrievers that train all of CLIP; the default bounds are from CTVR's released code."""

    train_scale: bool = setting(True, doc="whether to train CLIP's temperature")
    start_scale: float | None = setting(
        None, doc="initial 1 / temperature; none: the value of the CLIP checkpoint, 100", part="loss"
    )
    min_scale: float = setting(
        1.0, doc="lower bound of 1 / temperature after each step; 0: no lower bound", part="recipe"
    )
    max_scale: float = setting(200.0, doc="upper bound of 1 / temperature after each step", part="recipe")

    def __post_init__(self) -> None:
        require(self, ">= 1", "max_scale", hint="CLIP uses 100.")
        if not 0 <= self.min_scale <= self.max_scale:
            raise SettingError(
                f"<min_scale> must be between 0 and <max_scale>={self.max_scale}, got {self.min_scale}",
                "Use 0 for no lower bound.",
            )
        require(self, "in (0, inf)", "start_scale", hint="CLIP's is 100.")


def set_scale(clip: Clip, config: ScaleConfig) -> None:
    """Set `clip.logit_scale` to log(start_scale); if start_scale is None, leave it unchanged."""
    if config.start_scale is not None:
        with torch.no_grad():
            clip.logit_scale.fill_(math.log(config.start_scale))


def bound_scale(clip: Clip, config: ScaleConfig) -> None:
    """Clamp `clip.logit_scale` to the logarithms of min_scale and max_scale."""
    with torch.no_grad():
        least = math.log(config.min_scale) if config.min_scale else -math.inf
        clip.logit_scale.clamp_(least, math.log(config.max_scale))
