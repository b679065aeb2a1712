"""Additions to a projection, folded into its weights while those rest.

What is added as a matrix times the tokens, as LoRA is, costs two thin products and a pass over q, k and v in every
block. While nothing trains, as when a gallery or captions are encoded, the matrix is added to the weights once instead:
(W + B A) x = W x + B (A x), equal but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Fold = Callable[[], Tensor]  # what is added, as a matrix of the weights' shape; bound to what it is made of
MergeCache = dict[
    tuple[Fold, int], tuple[Tensor, Tensor]
]  # of a matrix and id(weights): the weights, and both together
_KEPT: ContextVar[MergeCache | None] = ContextVar("kept", default=None)


class Foldable(Protocol):
    """The seams of a block (blocks.py), of which `fold` does what `qkv`, `q`, `k` and `v` do."""

    @property
    def fold(self) -> Fold | None: ...


Seams = TypeVar("Seams", bound=Foldable)


@contextmanager
def merged_weights(kept: MergeCache | None = None) -> Iterator[None]:
    """Inside, in this thread, no weight changes: whatever is folded stays so until the end.

    Args:
        kept: what is folded, for one who rests several times in a row; None: nothing is kept behind the end.
    """
    outer = _KEPT.get()
    token = _KEPT.set(kept if kept is not None else {} if outer is None else outer)
    try:
        yield
    finally:
        _KEPT.reset(token)


def merge(weights: Tensor, seams: Seams) -> tuple[Tensor, Seams]:
    """The weights (3D, D) of q, k and v with what seams add to these, and the seams without it.

    Both as they are where weights may change or folding is not equal: with gradients the factors must be seen, and in
    bfloat16 a small addition is lost in large weights.
    """
    kept, fold = _KEPT.get(), seams.fold
    if kept is None or fold is None or torch.is_grad_enabled() or weights.dtype != torch.float32:
        return weights, seams
    if torch.is_autocast_enabled(weights.device.type):
        return weights, seams
    key = fold, id(weights)
    if key not in kept:
        kept[key] = weights, weights + fold()
    left: Seams = replace(seams, fold=None, qkv=None, q=None, k=None, v=None)  # type: ignore[type-var]
    return kept[key][1], left
