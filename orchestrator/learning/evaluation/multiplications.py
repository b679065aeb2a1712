"""Counter of the multiply-adds of all torch operators within a context."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode


class _NoModules:
    """Module tracker for `FlopCounterMode` that attributes all operators to the whole."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Multiplications(FlopCounterMode):
    """Torch's `FlopCounterMode` without module hooks.

    The hooks fail where a module returns a view of its weights without gradients (learned prompts).
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _NoModules()  # type: ignore[assignment]
