"""Encoding and scoring for methods whose caption features depend on the task whose videos are searched.

Shapes: B captions, V videos, L text length, N words, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.transfer import to_device


def by_task(encode: Callable[..., Tensor], tokens: Tensor, tasks: Tensor | None) -> Tensor:
    """Encode each caption for its task: features (B, d), or word features (B, N, d) padded with zero rows.

    Args:
        encode: (tokens, task) -> features of captions that search the videos of `task`; without `task`, the videos of
            the current task.
        tokens: (B, L) int64.
        tasks: (B,) int64 task of each caption, on the CPU; if None, all captions are encoded for the current task.
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
    """Return the scores (B, V) of all workers' captions and videos; each caption is encoded for the task of each video.

    Args:
        encode: (tokens, task) -> features of captions that search the videos of `task`.
        score: `Method.score`.
        tokens: (B', L) int64 captions of this worker.
        videos: (V, ...) features of the videos of all workers.
        tasks: (V,) int64 task of each video, on the CPU.
        present: tasks that may occur, in the same order on every worker; captions are encoded once for each of them.
    """
    parts, order = [], []
    for task in present:
        queries = gather(encode(tokens, task).float())
        rows = (tasks == task).nonzero()[:, 0]
        parts.append(score(queries, videos[to_device(rows, videos.device)]))
        order.append(rows)
    return torch.cat(parts, dim=1)[:, to_device(torch.cat(order).argsort(), videos.device)]
