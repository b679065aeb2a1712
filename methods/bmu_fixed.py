"""BMU-MoCo-fixed: momentum encoders that do not change within a task (a control of BMU-MoCo).

Gao et al., NeurIPS 2022, section 4.4 and table 3. theta are the encoders, theta_m the local momentum encoders. theta_m
keeps the weights at the end of the previous task: eq. 8 is not applied. So eq. 12 pulls theta toward theta_m in every
step, like weight decay toward the old weights. If every step adds the same vector g to theta, |theta - theta_m| remains
below m_hat / (1 - m_hat) |g|. Only the local momentum encoders compute keys. Before the task `method_start_task` the
model is Base-MoCo, as its row in table 3 implies.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctvr.methods.families.momentum import PAPER, SHAPES, MomentumRetriever, ReviewConfig
from ctvr.methods.layers.replay.momentum import ema_update, reverse_ema_update


@dataclass(frozen=True, kw_only=True)
class BMUFixedConfig(ReviewConfig):
    """Settings of BMU-MoCo-fixed, with ranges in search_spaces/. `m` applies only before task `method_start_task`."""


class BMUFixed(MomentumRetriever):
    """Momentum retriever whose encoders are pulled toward their weights at the end of the previous task."""

    Config = BMUFixedConfig
    PRESETS = {"paper": PAPER, "paper-text": {**PAPER, "method.text_pool": "avg"}, "shapes": SHAPES}
    config: BMUFixedConfig

    def after_step(self) -> None:
        assert self.local is not None
        if self.task_index + 1 >= self.config.method_start_task:
            reverse_ema_update(self.encoders, self.local.encoders, self.config.m_hat)  # eq. 12; no eq. 8
        else:
            ema_update(self.local.encoders, self.encoders, self.config.m)  # eq. 8
        self.enqueue()
