"""Gathers features of all workers, so that a contrastive loss sees the global batch.

Every worker computes the same loss over the gathered rows, so all computation after `gather` must be the same on all
of them: no random numbers and no rows of a single worker. The gradient that reaches a worker's own rows is then the
sum over workers of equal gradients, which needs no communication. Averaging parameter gradients afterwards, as
data parallel training does, gives exactly the gradient of the loss on one large batch. So no collective of a backward
pass can interleave with those of the averaging, whichever parameters a worker's rows have used.
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
    """Return the number of workers that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _AllGather(torch.autograd.Function):
    """Concatenate equal-shaped rows of all workers in rank order; the backward pass slices and scales the gradient."""

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
    """Inside, `gather` receives `sizes[rank]` rows from each worker; all workers have the sizes already."""
    _uneven.append(sizes)
    try:
        yield
    finally:
        _uneven.pop()


def gather(x: Tensor) -> Tensor:
    """Gather rows of all workers: (B, ...) on each -> (B * workers, ...), differentiable.

    Every worker must have the same number of rows, except inside `uneven_rows`. A second dimension may differ (words of
    captions) and is padded with zeros to the longest.
    """
    if world_size() == 1:
        return x
    sizes = _uneven[-1] if _uneven else ()
    if len(set(sizes)) < 2:
        return _gathered(x)
    most = max(sizes)
    whole = _gathered(torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])]))
    return torch.cat([rows[:size] for rows, size in zip(whole.split(most), sizes, strict=True)])


def _gathered(x: Tensor) -> Tensor:
    if x.ndim == 3:
        longest = torch.tensor(x.shape[1])  # on the CPU, exchanged by gloo: a GPU tensor would need a wait
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        x = F.pad(x, (0, 0, 0, int(longest) - x.shape[1]))
    if not x.is_floating_point():
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)
    return _AllGather.apply(x)


def deal(rows: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Return this worker's part of rows that worker 0 has drawn for all, in rank order.

    Args:
        rows: (N, ...) on the CPU of each worker, broadcast by gloo without waiting for a GPU. The values of worker 0
            are used.
        sizes: parts of every worker; equal parts if none are given.
    """
    if world_size() == 1:
        return rows
    dist.broadcast(rows, src=0)
    return rows.split(list(sizes) or len(rows) // world_size())[dist.get_rank()]
