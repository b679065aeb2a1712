"""First-in, first-out queue of the keys of the last K pairs, which are the negatives of momentum contrast.

MoCo (He et al., CVPR 2020), section 3.1, for two modalities as in BMU-MoCo (NeurIPS 2022), eq. 10-11.
The queue starts empty and grows, unless it is filled with random unit vectors, as in MoCo's code.

Shapes: B pairs, K slots, R keys in the queue (R <= K), d joint embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.settings import SettingError


class Pair(NamedTuple):
    """Features of pairs in both modalities; row i of both belongs to pair i. They are unit vectors in float32."""

    video: Tensor  # (B, d)
    text: Tensor  # (B, d)


def _reset_count(queue: nn.Module, missing: object) -> None:
    """Reset the cached number of keys after a state dict was loaded."""
    queue._count = None  # type: ignore[assignment]


class KeyQueue(nn.Module):
    """Queue of the newest keys of both modalities with their video ids; the state dict contains the whole queue."""

    video: Tensor
    text: Tensor
    videos: Tensor
    pointer: Tensor
    filled: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1:
            raise SettingError(f"<queue_size> must be >= 1, got {size}", "The paper uses 1440.")
        self.size = size
        self.register_buffer("video", torch.zeros(size, dim))
        self.register_buffer("text", torch.zeros(size, dim))
        self.register_buffer("videos", torch.full((size,), -1))
        self.register_buffer("pointer", torch.tensor(0))  # the slot that is written next
        self.register_buffer("filled", torch.tensor(0))  # R
        self._count: int | None = None  # cached value of `filled` on the host; None if it must be read
        self.register_load_state_dict_post_hook(_reset_count)

    def __len__(self) -> int:
        if self._count is None:
            self._count = int(self.filled)
        return self._count

    def content(self) -> tuple[Pair, Tensor]:
        """Return the keys (R, d) in the order of their slots, and their video ids (R,); a random key has the id -1."""
        filled = len(self)
        return Pair(self.video[:filled], self.text[:filled]), self.videos[:filled]

    @torch.no_grad()
    def enqueue(self, keys: Pair, videos: Tensor) -> None:
        """Append keys (B, d) with video ids (B,); remove the oldest keys. B need not divide K, and may exceed it."""
        count = len(videos)
        places = (self.pointer + torch.arange(count, device=self.videos.device)) % self.size
        newest = slice(max(0, count - self.size), count)  # no slot is written twice
        self.video[places[newest]] = keys.video[newest].to(self.video.dtype)
        self.text[places[newest]] = keys.text[newest].to(self.text.dtype)
        self.videos[places[newest]] = videos[newest]
        self._count = min(len(self) + count, self.size)
        self.pointer.copy_((self.pointer + count) % self.size)
        self.filled.copy_((self.filled + count).clamp(max=self.size))

    @torch.no_grad()
    def reset(self, random: bool = False) -> None:
        """Empty the queue or, if `random`, fill it with random unit vectors that do not belong to a video."""
        self._count = self.size if random else 0
        self.pointer.zero_()
        self.filled.fill_(self.size if random else 0)
        self.videos.fill_(-1)
        for keys in (self.video, self.text):
            keys.copy_(F.normalize(torch.randn(keys.shape), dim=-1) if random else torch.zeros(keys.shape))
