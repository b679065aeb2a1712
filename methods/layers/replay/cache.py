"""Cache of the video features of a frozen model within a task.

Shapes: B pairs, T frames.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ctvr.methods.base import Batch
from ctvr.methods.layers.transfer import to_device


class VideoFeatureCache:
    """Cache of features by video id, on the device of the features. Create a new cache if the model or task changes.

    Features of augmented frames are not cached, because augmentation differs each time.
    """

    def __init__(self) -> None:
        self._features: dict[int, Tensor] = {}

    def of(self, batch: Batch, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features (B, ...) of the videos of a batch; only videos that are not in the cache are encoded.

        Args:
            batch: frames, and `unaugmented_video_ids`, which identify equal frames.
            encode: deterministic encoder of N videos: (N, T, 3, H, W) -> (N, ...).
        """
        numbers = batch.unaugmented_video_ids
        if numbers is None:
            return encode(batch.frames)
        fresh = {number: row for row, number in enumerate(numbers) if number not in self._features}
        if fresh:
            rows = to_device(list(fresh.values()), batch.frames.device)
            self._features.update(zip(fresh, encode(batch.frames[rows]).unbind()))
        return torch.stack([self._features[number] for number in numbers])

    def state(self) -> tuple[Tensor, Tensor]:
        """Return the ids (N,) int64 of the cached videos and their features (N, ...); N is 0 for an empty cache."""
        if not self._features:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        return torch.tensor(list(self._features)), torch.stack(list(self._features.values()))

    def load(self, numbers: Tensor, features: Tensor) -> None:
        """Replace the cached features by those that `state` returned: `numbers` are video ids (N,)."""
        self._features = dict(zip(numbers.tolist(), features.unbind()))
