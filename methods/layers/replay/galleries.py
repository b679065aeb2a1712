"""Stored video features of previous tasks, the additional negatives of eq. 8 of CTVR (arXiv:2503.10111).

Shapes: B pairs, R stored videos of previous tasks, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ctvr.methods.base import Batch


class PastGallerySampler:
    """Sampler of stored features of previous tasks: each step gets all of them, or the next batch of them.

    Batches follow the stored order and have as many rows as the task's first batch of pairs. The last batch of a pass
    over the stored features may be shorter. Every task begins at the first row, so checkpoints do not contain the
    position. A call without gradients returns the batch of the next step and does not advance.

    Args:
        all_at_once: whether every step gets all stored features, as in eq. 8; the released code uses batches.
    """

    def __init__(self, all_at_once: bool) -> None:
        self.all_at_once = all_at_once
        self.stored: Tensor | None = None  # (R, d), concatenated at the first use in a task
        self._next_row = self._rows = 0

    def restart(self) -> None:
        """Remove the stored features and reset the position to the first row; call it at the start of a task."""
        self.stored, self._next_row, self._rows = None, 0, 0

    def references(self, sources: Sequence[Tensor], videos: Tensor) -> Tensor:
        """Return the stored features (R', d) that a step uses as negatives; (0, d) in the first task.

        Args:
            sources: features (n, d) of each previous task, in order; read only in the first step of a task.
            videos: (B, d) features of the videos of the step.
        """
        if self.stored is None:
            parts = [part for part in sources if part.numel()]
            self.stored = torch.cat(parts).to(videos) if parts else videos.new_empty(0, videos.shape[1])
        if self.all_at_once or not len(self.stored):
            return self.stored
        rows = self._rows or len(videos)
        batch = self.stored[self._next_row : self._next_row + rows]
        if torch.is_grad_enabled():
            self._rows, self._next_row = rows, (self._next_row + len(batch)) % len(self.stored)
        return batch


def encode_once(encode: Callable[[Tensor], Tensor], loader: Iterable[Batch]) -> list[Tensor]:
    """Return the feature (1, d) of each distinct video in `loader`, in order of first occurrence.

    Args:
        encode: frames (B, T, 3, H, W) -> features (B, d).
        loader: batches of pairs; a video occurs once for each of its captions.
    """
    features: dict[int, Tensor] = {}
    for batch in loader:
        for number, feature in zip(batch.video_ids.tolist(), encode(batch.frames).split(1)):
            features.setdefault(number, feature)
    return list(features.values())
