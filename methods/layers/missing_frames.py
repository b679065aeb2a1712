"""Videos with fewer frames than places: the places at their end hold frames of zeros, which no normalised frame is.

CLIP4Clip (Luo et al., arXiv:2104.08860) encodes them too and masks them in its header and in the mean; leaving them out
is the same, since the LSTM runs forward and nobody attends to a masked frame.

Shapes: B videos, T places, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def frames_there(frames: Tensor) -> Tensor:
    """How many of the T places of frames (B, T, 3, H, W) hold a frame, (B,) int64; at least one."""
    is_there = frames.flatten(2).any(dim=-1)  # (B, T)
    places = torch.arange(1, frames.shape[1] + 1, device=frames.device)
    return (is_there * places).amax(dim=1).clamp(min=1)


def without_missing(frames: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """`encode` (B', T', 3, H, W) -> (B', d) of videos that are equally long, put together in their order."""
    counts = frames_there(frames)
    found = counts.unique().tolist()
    if found == [frames.shape[1]]:
        return encode(frames)
    rows = [(counts == count).nonzero()[:, 0] for count in found]
    encoded = torch.cat([encode(frames[each, :count]) for each, count in zip(rows, found)])
    return encoded[torch.cat(rows).argsort()]
