"""Encodes captions and videos of several tasks in one batch, each for its own task.

Shapes: B captions, L text length, N words, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.transfer import to_device


def by_task(encode: Callable[..., Tensor], tokens: Tensor, tasks: Tensor | None) -> Tensor:
    """Return features (B, d), or of words (B, N, d) with zero rows up to the longest, in the order of `tokens`.

    Args:
        encode: (tokens, task) -> features of captions that search the videos of `task`; (tokens) for the current one.
        tokens: (B, L) int64.
        tasks: (B,) int64 task of each caption, on the CPU; None: all of the current one.
    """
    if tasks is None:
        return encode(tokens)
    order = tasks.argsort(stable=True)
    numbers, counts = (x.tolist() for x in tasks.unique(return_counts=True))
    rows = tokens[to_device(order, tokens.device)].split(counts)
    parts = [encode(own, task) for own, task in zip(rows, numbers, strict=True)]
    if parts[0].ndim == 3:
        longest = max(part.shape[1] for part in parts)
        parts = [F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts]
    return torch.cat(parts)[to_device(order.argsort(), tokens.device)]


def scores_by_task(
    encode: Callable[..., Tensor],
    score: Callable[[Tensor, Tensor], Tensor],
    tokens: Tensor,
    videos: Tensor,
    tasks: Tensor,
    present: Iterable[int],
) -> Tensor:
    """Score captions and videos (B, V), each video with captions encoded for the video's task.

    Args:
        encode: (tokens, task) -> features of captions that search the videos of `task`.
        score: `Method.score`.
        tokens: (B, L) int64, of this worker.
        videos: (V, ...), of all workers.
        tasks: (V,) int64 task of each video, on the CPU.
        present: the tasks that may occur, the same on every worker. Each costs one pass over all captions.
    """
    parts, order = [], []
    for task in present:
        queries = gather(encode(tokens, task).float())
        rows = (tasks == task).nonzero()[:, 0]
        parts.append(score(queries, videos[to_device(rows, videos.device)]))
        order.append(rows)
    return torch.cat(parts, dim=1)[:, to_device(torch.cat(order).argsort(), videos.device)]
