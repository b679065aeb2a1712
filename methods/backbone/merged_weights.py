"""Merges linear additions to a projection, such as LoRA, into the projection's frozen weights.

A separate LoRA costs two low-rank products and a pass over q, k and v in every block. When a gallery or captions are
encoded, weights do not change, so the LoRA's matrix B A is added to the weights W once. The results (W + B A) x and
W x + B (A x) are equal except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Fold = Callable[[], Tensor]  # computes the added matrix, in the shape of the weights, from its factors
MergeCache = dict[
    tuple[Fold, int], tuple[Tensor, Tensor]
]  # key: the function and id(weights); value: the weights, and the merged weights
_KEPT: ContextVar[MergeCache | None] = ContextVar("kept", default=None)


class Foldable(Protocol):
    """Hook points (seams) of a block (blocks.py), whose `fold` computes the matrix equivalent to qkv, q, k and v."""

    @property
    def fold(self) -> Fold | None: ...


Seams = TypeVar("Seams", bound=Foldable)


@contextmanager
def merged_weights(kept: MergeCache | None = None) -> Iterator[None]:
    """Context manager: declare that weights do not change in this thread, so that merged weights are cached.

    Args:
        kept: cache that the caller reuses in several such contexts; if None, an outer context's cache or a new one.
    """
    outer = _KEPT.get()
    token = _KEPT.set(kept if kept is not None else {} if outer is None else outer)
    try:
        yield
    finally:
        _KEPT.reset(token)


def merge(weights: Tensor, seams: Seams) -> tuple[Tensor, Seams]:
    """Merge the matrix of `seams.fold` into the weights (3D, D) of q, k and v; return them, and the seams without it.

    Both are returned unchanged outside `merged_weights`, if gradients are enabled, because the factors of the matrix
    need them, and in precisions other than float32. In bfloat16, rounding would remove small additions.
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
