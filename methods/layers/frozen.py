"""Frozen copies of a model."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import nn

Made = TypeVar("Made", bound=nn.Module)


def copied(module: Made) -> Made:
    """Return a deep copy in which the weights of each LSTM are in one contiguous block of memory.

    `deepcopy` allocates each tensor separately, so that cuDNN would gather the weights in every call.
    """
    made = copy.deepcopy(module)
    for part in made.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # does nothing on a CPU
    return made


class Frozen:
    """Frozen copy of a module in evaluation mode, such as a teacher or the model after an earlier task.

    The copy is not a submodule, so it is neither saved nor trained nor switched to training mode. Create it in
    `begin_task`, which a resumed run calls again.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copied(module).requires_grad_(False).eval()

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method `name` of the copy without gradients, and return its result."""
        with torch.no_grad():
            return getattr(self.module, name)(*args, **kwargs)
