"""Features of all workers side by side, so that a contrastive loss sees the global batch.

Every worker computes the same loss over the gathered rows, so what is behind `gather` must be the same on all of
them: nothing random of a worker's own, no rows of its own. The gradient that reaches a worker's own rows is then the
sum over workers of equal gradients, which needs no talk between them; averaging parameter gradients afterwards, as
data parallel training does, gives exactly the gradient of the loss on one large batch. So no collective of a backward
pass can cross those of the averaging, whichever parameters a worker's rows have used.
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
    """Workers that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _AllGather(torch.autograd.Function):
    """Concatenate equal-shaped rows of all workers in rank order; the backward slices, and sums what is equal."""

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
    """Inside, `gather` is given `sizes[rank]` rows by each worker, which all workers know without a word."""
    _uneven.append(sizes)
    try:
        yield
    finally:
        _uneven.pop()


def gather(x: Tensor) -> Tensor:
    """Rows of all workers: (B, ...) on each -> (B * workers, ...), differentiable.

    Every worker must bring equally many rows, but inside `uneven_rows`. A second dimension may differ (words of
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
        longest = torch.tensor(x.shape[1])  # hosts tell one another by gloo: of a GPU they would have to wait
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        x = F.pad(x, (0, 0, 0, int(longest) - x.shape[1]))
    if not x.is_floating_point():
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)
    return _AllGather.apply(x)


def deal(rows: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """This worker's part of what worker 0 has drawn for all, in rank order.

    Args:
        rows: (N, ...) on the CPU of each worker, which hosts tell one another by gloo: no GPU is waited for. Those of
            worker 0 count.
        sizes: parts of every worker; equal ones, if none are given.
    """
    if world_size() == 1:
        return rows
    dist.broadcast(rows, src=0)
    return rows.split(list(sizes) or len(rows) // world_size())[dist.get_rank()]
