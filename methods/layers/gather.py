"""Differentiable gathering of features of all workers, so that a contrastive loss is computed on the global batch.

Every worker computes the same loss over the gathered rows. All computation after `gather` must therefore be equal on
all workers: it must use neither random numbers nor rows of a single worker. The gradient of a worker's rows is then the
sum over workers of equal gradients, which is computed without communication. Averaging parameter gradients afterwards,
as data-parallel training does, gives exactly the gradient of the loss on one large batch. Because the backward pass
does not communicate here, its order cannot conflict with the collectives of that averaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def world_size() -> int:
    """Return the number of workers of the process group, or 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _AllGather(torch.autograd.Function):
    """Autograd function that concatenates tensors of equal shape of all workers in rank order.

    The backward pass takes the slice of the gradient that belongs to this worker, times the number of workers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.rows = len(x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        start = dist.get_rank() * ctx.rows
        return grad[start : start + ctx.rows] * world_size()


_uneven: list[Sequence[int]] = []  # rows of each worker, inside `uneven_rows`


@contextmanager
def uneven_rows(sizes: Sequence[int]) -> Iterator[None]:
    """Context manager: `gather` expects `sizes[rank]` rows from each worker. Pass the same `sizes` on all workers."""
    _uneven.append(sizes)
    try:
        yield
    finally:
        _uneven.pop()


def gather(x: Tensor) -> Tensor:
    """Gather the rows of all workers in rank order: (B, ...) on each worker -> (B * workers, ...), differentiable.

    Every worker must have the same number of rows, except inside `uneven_rows`. In tensors with three dimensions, the
    size of the second (words of a caption) may differ between workers; it is padded with zeros to the largest.
    """
    if world_size() == 1:
        return x
    sizes = _uneven[-1] if _uneven else ()
    if len(set(sizes)) < 2:
        return _gather_equal(x)
    most = max(sizes)
    whole = _gather_equal(torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])]))
    return torch.cat([rows[:size] for rows, size in zip(whole.split(most), sizes, strict=True)])


def _gather_equal(x: Tensor) -> Tensor:
    if x.ndim == 3:
        longest = torch.tensor(x.shape[1])  # on the CPU, exchanged by gloo, because reading a GPU tensor would wait
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        x = F.pad(x, (0, 0, 0, int(longest) - x.shape[1]))
    if not x.is_floating_point():
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)
    return _AllGather.apply(x)


def deal(rows: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Divide rows that worker 0 has drawn among all workers in rank order, and return this worker's part.

    Args:
        rows: (N, ...) on the CPU of each worker; overwritten by the rows of worker 0, which gloo broadcasts.
        sizes: number of rows of each worker; if empty, all workers get the same number.
    """
    if world_size() == 1:
        return rows
    dist.broadcast(rows, src=0)
    return rows.split(list(sizes) or len(rows) // world_size())[dist.get_rank()]
