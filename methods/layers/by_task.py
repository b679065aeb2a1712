"""Captions of several tasks in one batch, each read for its own task.

Shapes: B captions, L text length, N words, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.layers.transfer import to_device


def by_task(encode: Callable[..., Tensor], tokens: Tensor, tasks: Tensor | None) -> Tensor:
    """Features (B, d), or of words (B, N, d) with zero rows up to the longest, in the order of `tokens`.

    Args:
        encode: (tokens, task) -> features of captions that search the videos of `task`; (tokens) for the present one.
        tokens: (B, L) int64.
        tasks: (B,) int64 task of each caption, on the CPU; None: all of the present one.
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
