"""Activation checkpointing: whether it is active, and whether a pass of a block is its second one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CHECKPOINTS: ContextVar[bool] = ContextVar("checkpoints", default=False)
_AGAIN: ContextVar[bool] = ContextVar("again", default=False)


@contextmanager
def checkpointing(is_on: bool = True) -> Iterator[None]:
    """Activate checkpointing (arXiv:1604.06174): the graph stores only the input of each block.

    The backward pass computes each block again, with the same random numbers, precision and token state, so that
    losses and gradients are the same bit for bit. It costs one more forward pass of the trained blocks.
    """
    token = _CHECKPOINTS.set(is_on)
    try:
        yield
    finally:
        _CHECKPOINTS.reset(token)


def is_checkpointing() -> bool:
    """Return whether activations of blocks are computed again instead of kept."""
    return _CHECKPOINTS.get()


@contextmanager
def recomputing() -> Iterator[None]:
    """Mark a second forward pass of the same tokens within one step."""
    token = _AGAIN.set(True)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def is_recomputing() -> bool:
    """Return whether this is a second pass of the same tokens in a step, which a seam must not count twice."""
    return _AGAIN.get()
