"""Functions that stand in for those of a module for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def patched(module: nn.Module, **functions: Callable[..., object]) -> Iterator[None]:
    """Inside, `module` answers with `functions`; then with what was there before, its own or another stand-in."""
    former = {name: vars(module)[name] for name in functions if name in vars(module)}
    vars(module).update(functions)
    try:
        yield
    finally:
        for name in functions:
            del vars(module)[name]
        vars(module).update(former)
