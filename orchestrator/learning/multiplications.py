"""Multiply-adds of what runs within a context, as torch counts operators."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode


class _NoModules:
    """No record of modules for `FlopCounterMode`: all operators belong to the whole."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class Multiplications(FlopCounterMode):
    """Torch's counter of operators, without its hooks of modules.

    The hooks fail where a module returns a view of its weights without gradients (learned prompts).
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _NoModules()  # type: ignore[assignment]
