"""Merges additions to a projection into its frozen weights.

An addition of the form matrix times tokens, such as LoRA, costs two thin products and a pass over q, k and v in every
block. While nothing trains, for example when a gallery or captions are encoded, the matrix is added to the weights once
instead: (W + B A) x = W x + B (A x), equal except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Fold = Callable[[], Tensor]  # computes the added matrix, in the weights' shape; bound to its factors
MergeCache = dict[
    tuple[Fold, int], tuple[Tensor, Tensor]
]  # key: matrix and id(weights); value: the weights, and the merged weights
_KEPT: ContextVar[MergeCache | None] = ContextVar("kept", default=None)


class Foldable(Protocol):
    """The seams of a block (blocks.py), whose `fold` is equivalent to `qkv`, `q`, `k` and `v`."""

    @property
    def fold(self) -> Fold | None: ...


Seams = TypeVar("Seams", bound=Foldable)


@contextmanager
def merged_weights(kept: MergeCache | None = None) -> Iterator[None]:
    """Declare that no weight changes inside, in this thread; merged weights are cached until the end.

    Args:
        kept: cache to reuse over several such phases; None: nothing is kept after the end.
    """
    outer = _KEPT.get()
    token = _KEPT.set(kept if kept is not None else {} if outer is None else outer)
    try:
        yield
    finally:
        _KEPT.reset(token)


def merge(weights: Tensor, seams: Seams) -> tuple[Tensor, Seams]:
    """Return the weights (3D, D) of q, k and v with the seams' addition merged, and the seams without it.

    Both stay unchanged where weights may change or merging is not equivalent: gradients need the factors, and in
    bfloat16 a small addition is lost in large weights.
    """
    fold = seams.fold
    if fold is None or (kept := _KEPT.get()) is None or torch.is_grad_enabled() or weights.dtype != torch.float32:
        return weights, seams
    if torch.is_autocast_enabled(weights.device.type):
        return weights, seams
    key = fold, id(weights)
    if key not in kept:
        kept[key] = weights, weights + fold()
    left: Seams = replace(seams, fold=None, qkv=None, q=None, k=None, v=None)  # type: ignore[type-var]
    return kept[key][1], left
