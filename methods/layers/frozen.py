"""Copies of a model that are read and never trained."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class Frozen:
    """A copy that is read and never trained: a teacher, a former self.

    It is no submodule, so it is neither saved nor trained nor switched to training mode; make it in
    `begin_task`, where a resumed run makes it again.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module).requires_grad_(False).eval()

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the copy's method `name` without building a graph."""
        with torch.no_grad():
            return getattr(self.module, name)(*args, **kwargs)
