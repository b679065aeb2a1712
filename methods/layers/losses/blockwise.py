"""InfoNCE of batches whose similarity matrix is too large to store.

`contrastive` stores the logits (B, B) of B pairs, and a matrix of the same size for each direction. Each matrix takes
4 GB for 32,768 pairs, which a step with gradient accumulation may have. Here each block of rows is computed twice: for
the loss and for its gradient. The memory is linear in B. Values differ by rounding, since the order of sums differs.

Shapes: B pairs, R rows of a block, d features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

LARGE = 4096  # pairs from which blocks are used, because smaller matrices need little memory compared with the encoders
ROWS = 1024  # rows of a block


def contrastive_in_blocks(
    queries: Tensor,
    videos: Tensor,
    scale: Tensor,
    reduction: Literal["mean", "sum"] = "mean",
    numbers: Tensor | None = None,
) -> Tensor:
    """Compute `contrastive(scale * queries @ videos.mT, reduction, numbers)`, differentiable once.

    Args:
        queries: (B, d) float32 features of captions.
        videos: (B, d) float32 features of the video of each caption.
        scale: scalar, 1 / temperature.
        reduction: see `contrastive`.
        numbers: (B,) video ids; if given, other pairs of the same video are not negatives.
    """
    both: Tensor = _InBlocks.apply(queries, videos, scale, numbers)
    return both if reduction == "sum" else both / 2


class _InBlocks(torch.autograd.Function):
    """Autograd function: the sum of the cross-entropies of both directions, each averaged over the B pairs."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, videos: Tensor, scale: Tensor, numbers: Tensor | None) -> Tensor:
        rows, highest = [], queries.new_full((len(queries),), -torch.inf)
        total = torch.zeros_like(highest)  # sum of exp(z - highest) over the rows so far, for every column
        for _, logits in _blocks(queries, videos, scale, numbers):
            rows.append(logits.logsumexp(dim=1))
            higher = torch.maximum(highest, logits.amax(dim=0))
            total = total * (highest - higher).exp() + (logits - higher).exp().sum(dim=0)
            highest = higher
        by_row, by_column = torch.cat(rows), highest + total.log()
        ctx.save_for_backward(queries, videos, scale, by_row, by_column)
        ctx.numbers = numbers
        own = scale * (queries * videos).sum(dim=1)
        return (by_row - own).mean() + (by_column - own).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, videos, scale, by_row, by_column = ctx.saved_tensors
        of_queries, of_videos, of_scale = torch.empty_like(queries), torch.zeros_like(videos), torch.zeros_like(scale)
        for start, logits in _blocks(queries, videos, scale, ctx.numbers):
            part = slice(start, start + len(logits))
            slope = (logits - by_row[part, None]).exp_().add_((logits - by_column).exp_())
            slope.diagonal(start).sub_(2)  # the gradient with respect to the logits, times B
            of_scale += (slope * logits.masked_fill_(logits == -torch.inf, 0)).sum() / scale
            of_queries[part] = slope @ videos
            of_videos.addmm_(slope.mT, queries[part])
        each = grad / len(queries)
        return of_queries * (each * scale), of_videos * (each * scale), of_scale * each, None


def _blocks(queries: Tensor, videos: Tensor, scale: Tensor, numbers: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """Yield, for each block, the index of its first row and its logits (R, B), -inf for excluded negatives."""
    for start in range(0, len(queries), ROWS):
        logits = (scale * queries[start : start + ROWS]) @ videos.mT
        if numbers is not None:
            same = numbers[start : start + ROWS, None] == numbers[None, :]
            same.diagonal(start).fill_(False)
            logits.masked_fill_(same, -torch.inf)
        yield start, logits
