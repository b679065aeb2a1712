"""Frozen copies of a model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class Frozen:
    """A frozen copy for reading: a teacher or a former version of the model.

    It is not a submodule, so it is neither saved nor trained nor switched to training mode. Create it in
    `begin_task`, where a resumed run creates it again.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module).requires_grad_(False).eval()

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the copy's method `name` without building a graph."""
        with torch.no_grad():
            return getattr(self.module, name)(*args, **kwargs)
