"""Temporary replacement of a module's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def patched(module: nn.Module, **functions: Callable[..., object]) -> Iterator[None]:
    """Inside, `module` uses `functions`; afterwards its former functions are restored."""
    former = {name: vars(module)[name] for name in functions if name in vars(module)}
    vars(module).update(functions)
    try:
        yield
    finally:
        for name in functions:
            del vars(module)[name]
        vars(module).update(former)
