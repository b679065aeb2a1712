"""BMU-MoCo (local): the encoders follow their momentum encoders too. No memory beyond Base-MoCo's.

Gao et al., NeurIPS 2022, section 3.3 "Bidirectional Momentum Update"; table 1, "BMU-MoCo (local)". Per step:
q, k -> loss (eq. 10-11) -> optimizer -> theta <- m_hat theta + (1 - m_hat) theta_m (eq. 12)
-> theta_m <- m theta_m + (1 - m) theta (eq. 8) -> enqueue k.
Along a constant gradient the speed is m_hat (1 - m) / (1 - m m_hat) of plain training (0.4975 at .99, .99).
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.backbone.clip import Clip
from methods.families.momentum import PAPER, SHAPES, MomentumRetriever, ReviewConfig
from methods.layers.momentum import follow, review


@dataclass(frozen=True, kw_only=True)
class BMUMoCoLocalConfig(ReviewConfig):
    """Tuned by search_spaces/bmu_moco_local.py."""


class BMUMoCoLocal(MomentumRetriever):
    """From task `method_start_task` on, review what the local momentum encoders retain."""

    Config = BMUMoCoLocalConfig
    PRESETS = {"paper": PAPER, "paper-text": {**PAPER, "method.text_pool": "avg"}, "shapes": SHAPES}
    config: BMUMoCoLocalConfig

    def __init__(self, config: BMUMoCoLocalConfig, backbone: Clip) -> None:
        super().__init__(config, backbone)

    def after_step(self) -> None:
        assert self.local is not None
        if self.task_index + 1 >= self.config.method_start_task:
            review(self.encoders, self.local.encoders, self.config.m_hat)  # eq. 12
        follow(self.local.encoders, self.encoders, self.config.m)  # eq. 8
        self.enqueue()
