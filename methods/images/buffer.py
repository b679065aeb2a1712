"""Reservoir of images that is written in every step, as in divyam3897/UCL@cfaa81d (utils/buffer.py).

An image is offered to the buffer in each step that trains on it. So the buffer may contain an image several times, and
may contain images of the current task. numpy draws the random numbers one by one, in the order of the released code.

Shapes: B images offered, M slots, R stored images.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ctvr.methods.settings import SettingError


class ImageBuffer(nn.Module):
    """Buffer of at most `capacity` images with one additional tensor for each; the state dict contains everything.

    Args:
        capacity: number M of slots.
        seed: seed of `random`.

    Attributes:
        images: (R, 3, H, W), R <= M.
        kept: (R, ...) tensors stored with the images.
        random: random state for slots and rows; the strategy that owns the buffer also uses it.
    """

    images: Tensor
    kept: Tensor
    seen: Tensor  # () number of images offered so far

    def __init__(self, capacity: int, seed: int = 0) -> None:
        super().__init__()
        if capacity < 1:
            raise SettingError(
                f"<buffer_size> counts images and must be >= 1, got {capacity}", "The released code uses 256."
            )
        self.capacity, self.random = capacity, np.random.RandomState(seed)
        self.register_buffer("images", torch.empty(0))
        self.register_buffer("kept", torch.empty(0))
        self.register_buffer("seen", torch.tensor(0))

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, count: int) -> Tensor:
        """Sample indices (min(count, R),) of stored images without replacement, on the CPU."""
        size = min(count, len(self))
        return torch.from_numpy(self.random.choice(len(self), size=size, replace=False)) if size else torch.arange(0)

    @torch.no_grad()
    def write(self, images: Tensor, kept: Tensor) -> None:
        """Offer images (B, 3, H, W) with tensors `kept` (B, ...), which may replace stored ones.

        After N > M offers in total, each of the N images is in the buffer with probability M / N.
        """
        if not len(self):
            self.images, self.kept = images[:0].clone(), kept[:0].clone()
        places: dict[int, int] = {}  # slot -> row; the last row offered for a slot is stored
        seen = int(self.seen)
        for row in range(len(images)):
            place = seen if seen < self.capacity else int(self.random.randint(0, seen + 1))
            if place < self.capacity:
                places[place] = row
            seen += 1
        self.seen.fill_(seen)
        new = [row for place, row in sorted(places.items()) if place >= len(self)]
        old = {place: row for place, row in places.items() if place < len(self)}
        if old:
            where, rows = list(old), list(old.values())
            self.images[where], self.kept[where] = images[rows], kept[rows]
        if new:
            self.images, self.kept = torch.cat([self.images, images[new]]), torch.cat([self.kept, kept[new]])

    def get_extra_state(self) -> Tensor:
        """Return the state of `random`: the 624 words of the Mersenne twister and its position."""
        state = self.random.get_state(legacy=False)["state"]
        return torch.tensor([*state["key"].tolist(), state["pos"]])

    def set_extra_state(self, state: Tensor) -> None:
        *words, position = state.tolist()
        self.random.set_state(("MT19937", np.array(words, dtype=np.uint32), position, 0, 0.0))
