"""Upper bound: joint training on all tasks so far, from the pre-trained weights every time.

CTVR (arXiv:2503.10111), section 4.3.1 and the last row of table 1. In each task t the model starts again
from CLIP, is trained on the pairs of tasks 1 to t, and encodes all videos again. It is the only row that intentionally
does not keep stored features. So its backward forgetting is not 0 (the paper prints -0.17 to 0.27).

A retriever that encodes captions for each task (FrameFusionMoE, MoE-Adapter) keeps its structure, which the paper does
not describe: prototypes and routers of all tasks so far are trained together. In a batch, as in the evaluation, a
caption is encoded for each video's task, so eq. 7 has negatives of all tasks. The cross-task loss of eq. 8 is omitted,
because it stands in for videos that cannot be read again. Learning rates are those of task 1, which also starts from
CLIP. The last training takes as many steps as all tasks of the continual run together. The result is not strictly an
upper bound: in every step eq. 8 compares with all stored videos, a joint batch only with its own pairs.

Shapes: B pairs, T frames, L text length.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup, Task
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.gather import gather, world_size
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.task_captions import by_task, scores_by_task
from ctvr.methods.settings import SettingError, setting


@dataclass(frozen=True, kw_only=True)
class UpperBoundConfig:
    """Settings of the upper bound; `base.*` are the settings of the wrapped retriever."""

    UNPUBLISHED = ("base.lr", "optim.weight_decay", "optim.warmup")

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    only_final: bool = setting(
        False,
        doc="whether to train only once, at the last task, on the pairs of all tasks; the model is untrained until "
        "then",
    )


class UpperBound(Strategy):
    """Strategy that trains the initial retriever on all tasks so far, again in each task or only in the last one."""

    Config = UpperBoundConfig
    PRESETS = {
        "paper": {},
        "shapes": {"base.lr": 4e-6},  # as for clip4clip
        "framefusion": Override({"method.base": "framefusion_moe"}),
        "moe": Override({"method.base": "moe_adapter"}),
        "only-final": Override({"method.only_final": True}),
    }

    @classmethod
    def check_base(cls, config: UpperBoundConfig, base: type[Method], base_config: Any) -> None:
        found = base.capabilities(base_config)
        if found.task_conditioned_text and not found.joins_tasks:
            raise SettingError(
                "the retriever conditions captions on the searched task, but cannot train the parameters of several "
                "tasks together (joins_tasks)",
                write="<base>=clip4clip",
            )
        super().check_base(config, base, base_config)

    @classmethod
    def capabilities(cls, config: UpperBoundConfig) -> Capabilities:
        return Capabilities(trains_on="seen", uses_all_parameters=True, reencodes_gallery=True)

    @classmethod
    def trains_on_searched(cls, config: UpperBoundConfig, of_base: bool = False) -> bool:
        return False  # every training starts from a new retriever, which has not stored a gallery

    def __init__(self, config: UpperBoundConfig, base: Method) -> None:
        super().__init__(config, base)
        self._constructed: Callable[[], Method] | None = None
        self._is_idle = False
        self._is_joint = base.declared.task_conditioned_text  # the base has parameters for each task
        self._tasks: list[Task] = []  # tasks so far

    def begin_task(self, task: Task) -> None:
        device = next(self.base.parameters()).device
        if self._constructed is None:  # in the first task, before the retriever is changed
            self._constructed = partial(copy.deepcopy, copy.deepcopy(self.base))
        self.base = self._constructed().to(device)
        self._is_idle = self.config.only_final and task.index < task.num_tasks - 1
        if self._is_joint:
            self.base.is_joint = True
            self._tasks = [*self._tasks[: task.index], task]
            for former in self._tasks[:-1]:
                self.base.begin_task(former)
        super().begin_task(task)

    def param_groups(self) -> list[ParamGroup]:
        return [] if self._is_idle else super().param_groups()

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        return self.base.encode_video_for_task(frames, task) if self._is_joint else self.encode_video(frames)

    def logits(self, batch: Batch) -> Tensor:
        """Return scaled similarities (B, B); if text is task-conditioned, column j has captions for video j's task."""
        if not self._is_joint or batch.task_ids is None:
            return super().logits(batch)
        videos = gather(by_task(self.encode_video_for_task, batch.frames, batch.task_ids))
        tasks = gather(batch.task_ids)  # on the CPU
        # Every worker scores the same tasks: gathered tensors must have equal shapes
        present = range(len(self._tasks)) if world_size() > 1 else tasks.unique().tolist()
        with torch.autocast(videos.device.type, enabled=False):
            return self.scale().float() * scores_by_task(
                self.encode_text, self.score, batch.tokens, videos.float(), tasks, present
            )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if not self._is_joint or batch.task_ids is None:
            return super().losses(replace(batch, task_ids=None))
        reduction: Literal["mean", "sum"] = getattr(self.base.config, "loss_reduction", "mean")
        return {"contrastive": contrastive(self.logits(batch), reduction)}
