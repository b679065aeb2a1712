"""Upper bound: joint training on all tasks so far, from the pre-trained weights every time.

CTVR (arXiv:2503.10111), section 4.3.1 and the last row of table 1. After each task the model starts
anew from CLIP, learns D_1 u ... u D_t, and re-encodes all videos: the one row that breaks the rule of
stored features, on purpose. Its backward forgetting is therefore not 0 (the paper prints -0.17 to 0.27).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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

    def __init__(self, config: UpperBoundConfig, base: Method) -> None:
        super().__init__(config, base)
        self.trains_on, self.reencodes_gallery = "seen", True
        self._pretrained = {name: value.detach().clone() for name, value in base.state_dict().items()}
        self._is_idle = False

    def begin_task(self, task: Task) -> None:
        self._restore()
        self._is_idle = self.config.only_final and task.index < task.num_tasks - 1
        super().begin_task(task)

    def param_groups(self) -> list[ParamGroup]:
        return [] if self._is_idle else super().param_groups()

    def _restore(self) -> None:
        """Bring back the pre-trained weights; what an earlier begin_task added stays for the base to renew."""
        state = self.base.state_dict()
        for name, buffer in list(self.base.named_buffers()):
            if name in self._pretrained and buffer.shape != self._pretrained[name].shape:  # a memory that has grown
                holder, _, leaf = name.rpartition(".")
                setattr(self.base.get_submodule(holder), leaf, self._pretrained[name].clone().to(buffer.device))
        with torch.no_grad():
            for name, value in self._pretrained.items():
                if state[name].shape == value.shape:
                    state[name].copy_(value)
