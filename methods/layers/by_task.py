"""Captions of several tasks in one batch, each read for its own task.

Shapes: B captions, L text length, N words, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def by_task(encode: Callable[..., Tensor], tokens: Tensor, tasks: Tensor | None) -> Tensor:
    """Features (B, d), or of words (B, N, d) with zero rows up to the longest, in the order of `tokens`.

    Args:
        encode: (tokens, task) -> features of captions that search the videos of `task`; (tokens) for the present one.
        tokens: (B, L) int64.
        tasks: (B,) int64 task of each caption; None: all of the present one.
    """
    if tasks is None:
        return encode(tokens)
    rows = [(tasks == task).nonzero()[:, 0] for task in tasks.unique()]
    parts = [encode(tokens[own], int(tasks[own[0]])) for own in rows]
    if parts[0].ndim == 3:
        longest = max(part.shape[1] for part in parts)
        parts = [F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts]
    return torch.cat(parts)[torch.cat(rows).argsort()]
