"""Contexts for activation checkpointing, and for a forward pass that recomputes a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CHECKPOINTS: ContextVar[bool] = ContextVar("checkpoints", default=False)
_AGAIN: ContextVar[bool] = ContextVar("again", default=False)


@contextmanager
def checkpointing(is_on: bool = True) -> Iterator[None]:
    """Context manager: activate checkpointing (arXiv:1604.06174), so the graph stores only the input of each block.

    The backward pass computes each block again, with the same random numbers, precision and token state. Losses and
    gradients are bit-identical to a run without checkpointing. It costs one more forward pass of the trained blocks.

    Args:
        is_on: whether checkpointing is active inside.
    """
    token = _CHECKPOINTS.set(is_on)
    try:
        yield
    finally:
        _CHECKPOINTS.reset(token)


def is_checkpointing() -> bool:
    """Return whether activations of blocks are not stored, because the backward pass will compute them again."""
    return _CHECKPOINTS.get()


@contextmanager
def recomputing() -> Iterator[None]:
    """Context manager: mark the enclosed forward pass as one that recomputes the activations of a block."""
    token = _AGAIN.set(True)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def is_recomputing() -> bool:
    """Return whether the current forward pass recomputes a block, so that a hook (seam) must not count its tokens."""
    return _AGAIN.get()
