"""Cache of the features that a frozen model computes of a task's videos.

Shapes: B pairs, T frames.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ctvr.methods.base import Batch
from ctvr.methods.layers.transfer import to_device


class VideoFeatureCache:
    """Features of videos by their numbers, on their device. Create a new one when the model or the task changes.

    Augmented frames differ each time, so their features are not cached.
    """

    def __init__(self) -> None:
        self._features: dict[int, Tensor] = {}

    def of(self, batch: Batch, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features (B, ...) of the batch's videos.

        Args:
            batch: its `unaugmented_video_ids` identify equal frames.
            encode: frames (., T, 3, H, W) -> (., ...), without random numbers; it is called for new videos only.
        """
        numbers = batch.unaugmented_video_ids
        if numbers is None:
            return encode(batch.frames)
        fresh = {number: row for row, number in enumerate(numbers) if number not in self._features}
        if fresh:
            rows = to_device(list(fresh.values()), batch.frames.device)
            self._features.update(zip(fresh, encode(batch.frames[rows]).unbind()))
        return torch.stack([self._features[number] for number in numbers])
