"""BMU-MoCo: bidirectional momentum update with local and global momentum encoders.

Gao et al., "BMU-MoCo: Bidirectional Momentum Update for Continual Video-Language Modeling", NeurIPS
2022, section 3.3. theta are the encoders, theta_m the local and theta~_m the global momentum encoders. One step:

    1  q from theta, k from theta_m, k~ from theta~_m                       eq. 7, 9, 15
    2  L = L_V2T + L_T2V, two positives in one sum                          eq. 16-18
    3  optimizer step
    4  theta <- m_hat theta + (1 - m_hat) theta_m                           eq. 12
    5  theta <- m_hat theta + (1 - m_hat) theta~_m                          eq. 13, after eq. 12
    6  theta_m <- m theta_m + (1 - m) theta                                 eq. 8
    7  theta~_m <- m theta~_m + (1 - m) theta                               eq. 14
    8  enqueue k and k~

theta_m is initialized from theta at every task; theta~_m is initialized once and kept for all tasks. The paper calls
lines 4 and 6 "simultaneous" without an order; the setting `order` selects one of three interpretations.
The settings `bmu`, `use_local` and `use_global` give the rows of table 2. Preset `local` is "BMU-MoCo (local)" of
table 1, which needs only the memory of Base-MoCo. With a constant gradient, its weights move
m_hat (1 - m) / (1 - m m_hat) times as fast as in plain training (0.4975 times with m = m_hat = 0.99). All rows of the
tables share their first task. So before task `method_start_task` the model is Base-MoCo; theta~_m and its queue are
still updated.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Override, Task
from ctvr.methods.families.momentum import PAPER, SHAPES, MomentumRetriever, ReviewConfig
from ctvr.methods.layers.replay.momentum import Encoders, Momentum, ema_update, reverse_ema_update
from ctvr.methods.settings import SettingError, setting


@dataclass(frozen=True, kw_only=True)
class BMUMoCoConfig(ReviewConfig):
    """Settings of BMU-MoCo, with ranges in search_spaces/."""

    bmu: bool = setting(True, doc="whether to apply the bidirectional momentum update, eqs. 12 and 13")
    use_local: bool = setting(True, doc="whether to use the momentum encoders of the current task")
    use_global: bool = setting(True, doc="whether to use the momentum encoders of all tasks")
    method_start_task: int = setting(
        2,
        doc="number, from 1, of the first task trained with the method; earlier tasks are trained with Base-MoCo, so "
        "all rows of table 1 have an equal first task",
        paper="1",
    )
    order: Literal["enc_first", "mom_first", "simultaneous"] = setting(
        "enc_first", doc="order of updates of the encoders and their momentum encoders in a step", paper="simultaneous"
    )
    global_init: Literal["pretrained", "after_task1"] = setting(
        "pretrained",
        doc="time at which the global momentum encoder theta~_m is initialized with the weights of the encoder theta",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.use_local or self.use_global):
            raise SettingError("<use_local> and <use_global> are false, but one must compute keys", "Set one to true.")


def _row(bmu: bool, local: bool, global_: bool) -> Override:
    return Override({"method.bmu": bmu, "method.use_local": local, "method.use_global": global_})


class BMUMoCo(MomentumRetriever):
    """Momentum retriever: from task `method_start_task` on, momentum encoders also update the trained encoders."""

    Config = BMUMoCoConfig
    PRESETS = {
        "paper": PAPER,
        "paper-text": {**PAPER, "method.text_pool": "avg"},
        "shapes": SHAPES,
        "local": Override({"method.use_global": False}),  # the row `bmu_moco_local`
        "table2-row1": _row(False, True, False),
        "table2-row2": _row(False, False, True),
        "table2-row3": _row(False, True, True),
        "table2-row4": _row(True, True, False),
        "table2-row5": _row(True, False, True),
        "table2-row6": _row(True, True, True),
    }
    config: BMUMoCoConfig

    def __init__(self, config: BMUMoCoConfig, backbone: Clip) -> None:
        super().__init__(config, backbone, config.use_local, config.use_global)

    @property
    def _has_started(self) -> bool:
        return self.task_index + 1 >= self.config.method_start_task

    def contrasted(self) -> list[Momentum]:
        return self.momenta if self._has_started else self.momenta[:1]

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if task.index == 1 and self.config.global_init == "after_task1" and self.global_ is not None:
            self.global_.restart(self.encoders)
            self.global_.queue.reset(random=self.config.queue_init == "random")

    def after_step(self) -> None:
        is_reviewing = self.config.bmu and self._has_started
        if self.config.order == "mom_first":
            self._follow(self.encoders)
        learned = (
            copy.deepcopy(self.encoders) if is_reviewing and self.config.order == "simultaneous" else self.encoders
        )
        if is_reviewing:
            for momentum in self.momenta:  # eq. 12, then eq. 13
                reverse_ema_update(self.encoders, momentum.encoders, self.config.m_hat)
        if self.config.order != "mom_first":
            self._follow(learned)
        self.enqueue()

    def _follow(self, encoders: Encoders) -> None:
        for momentum in self.momenta:  # eq. 8, eq. 14
            ema_update(momentum.encoders, encoders, self.config.m)
