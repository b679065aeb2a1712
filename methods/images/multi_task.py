"""Multi-Task over images, a row of BMU-MoCo's Table 4: joint training on the images of all tasks.

divyam3897/UCL@cfaa81d, whose protocol the table uses, does not contain this row, and the paper does not specify its
training. Here the network is initialized again for each task, and trained on the images of all tasks so far. With
`only_final` it is trained only in the last task, on the images of all tasks; before, it is untrained.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from ctvr.methods.base import Capabilities, ParamGroup, Task
from ctvr.methods.images.siamese import Siamese, SiameseStrategy
from ctvr.methods.settings import setting


@dataclass(frozen=True, kw_only=True)
class ImageMultiTaskConfig:
    """Settings of joint training; `base.*` are the settings of the siamese network."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("image_finetune", doc="name of the wrapped siamese network, whose settings are base.*")
    only_final: bool = setting(
        True,
        doc="whether to train only once, at the last task, on the images of all tasks; the network is untrained until "
        "then, so the forgetting metrics are meaningless",
    )


class ImageMultiTask(SiameseStrategy):
    """Strategy of joint training: for each task, a new network is trained on the images of all tasks so far."""

    Config = ImageMultiTaskConfig
    config: ImageMultiTaskConfig

    @classmethod
    def capabilities(cls, config: ImageMultiTaskConfig) -> Capabilities:
        return Capabilities(trains_on="seen")

    def __init__(self, config: ImageMultiTaskConfig, base: Siamese) -> None:
        super().__init__(config, base)
        self._start = [copy.deepcopy(base)]  # in a list, so that it is neither a submodule nor in the state dict
        self._is_idle = False

    def begin_task(self, task: Task) -> None:
        device = next(self.base.parameters()).device
        self.base = copy.deepcopy(self._start[0]).to(device)
        self._is_idle = self.config.only_final and task.index < task.num_tasks - 1
        super().begin_task(task)

    def param_groups(self) -> list[ParamGroup]:
        return [] if self._is_idle else super().param_groups()
