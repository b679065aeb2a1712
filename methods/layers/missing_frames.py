"""Videos with fewer frames than positions: the rest are frames of zeros, a value that no normalised frame has.

CLIP4Clip (Luo et al., arXiv:2104.08860) encodes them too and masks them in its header and in the mean. Leaving them out
is equivalent, since the LSTM runs forward and no frame attends to a masked frame.

Shapes: B videos, T places, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def frames_there(frames: Tensor) -> Tensor:
    """Count the positions of frames (B, T, 3, H, W) up to the last frame that is not zero, (B,) int64; at least one."""
    is_there = frames.flatten(2).any(dim=-1)  # (B, T)
    places = torch.arange(1, frames.shape[1] + 1, device=frames.device)
    return (is_there * places).amax(dim=1).clamp(min=1)


def without_missing(frames: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Encode videos in groups of equal length with `encode` (B', T', 3, H, W) -> (B', d), and restore their order."""
    counts = frames_there(frames)
    found = counts.unique().tolist()
    if found == [frames.shape[1]]:
        return encode(frames)
    rows = [(counts == count).nonzero()[:, 0] for count in found]
    encoded = torch.cat([encode(frames[each, :count]) for each, count in zip(rows, found)])
    return encoded[torch.cat(rows).argsort()]
