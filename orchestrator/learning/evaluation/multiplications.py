"""Counter of the multiply-adds of all torch operators within a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Multiplications(TorchDispatchMode):
    """Sums torch's operation counts (`flop_registry`) of all operators that run in the context.

    Torch's `FlopCounterMode` needs hooks of modules, which fail where a module returns a view of its weights without
    gradients (learned prompts), and imports torch's compiler, which takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # the default imports torch's compiler
        return False

    def get_total_flops(self) -> int:
        """Return the multiplications and additions so far, two for each multiply-add."""
        return self.total

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None and func is not torch.ops.prim.device.default:
            with self:  # an operator that is composed of other operators
                made = func.decompose(*args, **given)
            if made is not NotImplemented:
                return made
        found = func(*args, **given)
        self.total += 0 if count is None else count(*args, **given, out_val=found)
        return found
