"""Upper bound: joint training on all tasks so far, from the pre-trained weights every time.

CTVR (arXiv:2503.10111), section 4.3.1 and the last row of table 1. After each task the model starts
anew from CLIP, learns D_1 u ... u D_t, and re-encodes all videos: the one row that breaks the rule of
stored features, on purpose. Its backward forgetting is therefore not 0 (the paper prints -0.17 to 0.27).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

from methods.base import Method, ParamGroup, Task
from methods.families.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class UpperBoundConfig:
    """`base.*` are the settings of the wrapped retriever."""

    base: str = "clip4clip"
    only_final: bool = False  # one training on all tasks at the end; earlier tasks stay zero-shot


class UpperBound(Strategy):
    """Wrap a retriever; forget nothing by learning everything again."""

    Config = UpperBoundConfig
    PRESETS = {"paper": {}, "shapes": {"base.lr": 4e-6}}  # shapes: as clip4clip's

    @classmethod
    def check_base(cls, config: UpperBoundConfig, base: type[Method], base_config: Any) -> None:
        if base.reads_by_task(base_config):
            raise ValueError(
                "it keeps parameters for each task and reads captions by the task that they search, while one joint "
                "training has no tasks. Write method.base=clip4clip."
            )
        super().check_base(config, base, base_config)

    @classmethod
    def trains_on_searched(cls, config: UpperBoundConfig, of_base: bool = False) -> bool:
        return False  # every training starts from a fresh retriever, which remembers no gallery

    def __init__(self, config: UpperBoundConfig, base: Method) -> None:
        super().__init__(config, base)
        self.trains_on, self.reencodes_gallery = "seen", True
        self._constructed = partial(copy.deepcopy, copy.deepcopy(base))  # as no task has changed it: no experts yet
        self._is_idle = False

    def begin_task(self, task: Task) -> None:
        device = next(self.base.parameters()).device
        self.base = self._constructed().to(device)
        self._is_idle = self.config.only_final and task.index < task.num_tasks - 1
        super().begin_task(task)

    def param_groups(self) -> list[ParamGroup]:
        return [] if self._is_idle else super().param_groups()
