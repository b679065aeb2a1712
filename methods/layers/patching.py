"""Temporary replacement of attributes of a module, such as its methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def patched(module: nn.Module, **functions: Callable[..., object]) -> Iterator[None]:
    """Context manager: set `functions` as attributes of `module`, and restore its previous attributes on exit."""
    former = {name: vars(module)[name] for name in functions if name in vars(module)}
    vars(module).update(functions)
    try:
        yield
    finally:
        for name in functions:
            del vars(module)[name]
        vars(module).update(former)
