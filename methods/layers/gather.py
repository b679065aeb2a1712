"""Features of all workers side by side, so that a contrastive loss sees the global batch.

Every worker computes the same loss over the gathered rows. The gradient that reaches a worker's own
rows is the sum over workers of equal gradients; averaging parameter gradients afterwards, as data
parallel training does, gives exactly the gradient of the loss on one large batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def world_size() -> int:
    """Workers that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _AllGather(torch.autograd.Function):
    """Concatenate equal-shaped rows of all workers in rank order; the backward sums and slices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.rows = len(x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        start = dist.get_rank() * ctx.rows
        return grad[start : start + ctx.rows]


def gather(x: Tensor) -> Tensor:
    """Rows of all workers: (B, ...) on each -> (B * workers, ...), differentiable.

    Every worker must bring equally many rows. A second dimension may differ (words of captions) and is
    padded with zeros to the longest.
    """
    if world_size() == 1:
        return x
    if x.ndim == 3:
        longest = torch.tensor(x.shape[1], device=x.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        x = F.pad(x, (0, 0, 0, int(longest) - x.shape[1]))
    if not x.is_floating_point():
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)
    return _AllGather.apply(x)
