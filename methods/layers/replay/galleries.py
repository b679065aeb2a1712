"""Stored videos of former tasks, the additional negatives of captions in eq. 8 of CTVR (arXiv:2503.10111).

Shapes: B pairs, R stored videos of former tasks, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ctvr.methods.base import Batch


class PastGallerySampler:
    """Returns the features of former videos as references: all of them in every step, or one batch after the other.

    Batches have as many rows as the task's first batch of pairs, in the order of storing, unshuffled; the
    last one of a round may be shorter. No checkpoint holds this state: a task begins at the first row. A pass
    without gradients is not a step: it gets the batch of the next step and does not advance.

    Args:
        all_at_once: eq. 8 sums over all former videos; the released code takes batches.
    """

    def __init__(self, all_at_once: bool) -> None:
        self.all_at_once = all_at_once
        self.stored: Tensor | None = None  # (R, d), concatenated at the first use in a task
        self._next_row = self._rows = 0

    def restart(self) -> None:
        """Reset at the start of a task."""
        self.stored, self._next_row, self._rows = None, 0, 0

    def references(self, sources: Sequence[Tensor], videos: Tensor) -> Tensor:
        """Return (R, d) for a step on `videos` (B, d); (0, d) if nothing is stored.

        Args:
            sources: (., d) features of former tasks, in order; read at the task's first step.
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
    """Encode every video in `loader` once, whatever its number of captions: features (1, d) each."""
    features: dict[int, Tensor] = {}
    for batch in loader:
        for number, feature in zip(batch.video_ids.tolist(), encode(batch.frames).split(1)):
            features.setdefault(number, feature)
    return list(features.values())
