"""Base-MoCo: cross-modal momentum contrast, fine-tuned on one task after the other.

The lower bound of BMU-MoCo (Gao et al., NeurIPS 2022), section 3.3 "Cross-Modal MoCo", and the base of all
its competitors. Per step: q, k -> loss (eq. 10-11) -> optimizer -> theta_m (eq. 8) -> enqueue k.
Negatives come only from the queue. In the first step the queue is empty, so the loss is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctvr.methods.families.momentum import PAPER, SHAPES, MomentumConfig, MomentumRetriever
from ctvr.methods.layers.replay.momentum import ema_update


@dataclass(frozen=True, kw_only=True)
class BaseMoCoConfig(MomentumConfig):
    """Settings of Base-MoCo, with ranges in search_spaces/."""


class BaseMoCo(MomentumRetriever):
    """CLIP trained against a queue of keys, without protection against forgetting."""

    Config = BaseMoCoConfig
    PRESETS = {"paper": PAPER, "paper-text": {**PAPER, "method.text_pool": "avg"}, "shapes": SHAPES}

    def after_step(self) -> None:
        assert self.local is not None
        ema_update(self.local.encoders, self.encoders, self.config.m)  # eq. 8
        self.enqueue()
