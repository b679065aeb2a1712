"""BMU-MoCo-ensemble: averages encoders and momentum encoders once per task, at its end (a control of BMU-MoCo).

Gao et al., NeurIPS 2022, section 4.4 and table 3: "adding the parameters of the momentum encoders at the
end of each task". The paper does not give a formula. Here the result is a weighted mean, with equal weights by default,
of three sets of weights: theta (encoders), theta_m (local momentum encoders) and theta~_m (global momentum encoders).
Within a task, eq. 12 and 13 are not applied; the loss is eq. 16-18, and the momentum updates are eq. 8 and 14.
The row printed in table 3 equals row 3 of table 2 in every digit, so it may not be a separate measurement.
With `evaluation.select=best`, epochs are compared before the weights are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Task
from ctvr.methods.families.momentum import PAPER, SHAPES, START_HINT, MomentumConfig, MomentumRetriever
from ctvr.methods.layers.replay.momentum import Momentum, reverse_ema_update
from ctvr.methods.settings import SettingError, require, setting


@dataclass(frozen=True, kw_only=True)
class BMUEnsembleConfig(MomentumConfig):
    """Settings of BMU-MoCo-ensemble, with ranges in search_spaces/."""

    ensemble_weights: tuple[float, float, float] = setting(
        (1 / 3, 1 / 3, 1 / 3),
        doc="ensemble weights of the encoder, its momentum encoder and the global momentum encoder",
        unpublished=True,
        later=True,
    )
    method_start_task: int = setting(
        2, doc="number, from 1, of the first task trained with the method; earlier tasks are trained with Base-MoCo"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "method_start_task", hint=START_HINT)
        weights = self.ensemble_weights
        if min(weights) < 0 or not math.isclose(sum(weights), 1, abs_tol=1e-6):
            raise SettingError(
                f"<ensemble_weights> must be >= 0 and sum to 1, got {weights}", "Use (1, 0, 0) for no ensemble."
            )


class BMUEnsemble(MomentumRetriever):
    """Momentum retriever that averages encoders, local and global momentum encoders at the end of a task."""

    Config = BMUEnsembleConfig
    PRESETS = {"paper": PAPER, "paper-text": {**PAPER, "method.text_pool": "avg"}, "shapes": SHAPES}
    config: BMUEnsembleConfig

    def __init__(self, config: BMUEnsembleConfig, backbone: Clip) -> None:
        super().__init__(config, backbone, has_global=True)

    @property
    def _has_started(self) -> bool:
        return self.task_index + 1 >= self.config.method_start_task

    def contrasted(self) -> list[Momentum]:
        return self.momenta if self._has_started else self.momenta[:1]

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Set theta <- w_0 theta + w_1 theta_m + w_2 theta~_m, before the videos of this task are encoded."""
        if not self._has_started:
            return
        first, second, third = self.config.ensemble_weights
        assert self.local is not None
        assert self.global_ is not None
        reverse_ema_update(self.encoders, self.local.encoders, first / (first + second) if first + second else 1.0)
        reverse_ema_update(self.encoders, self.global_.encoders, 1 - third)
