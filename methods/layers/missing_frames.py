"""Encoding of videos with fewer than T frames; their remaining positions are all-zero frames, called missing.

A real frame is never all zero after normalization. CLIP4Clip (Luo et al., arXiv:2104.08860) encodes missing frames, but
masks them in its header and in the mean. Here they are omitted, which is equivalent: the LSTM runs forward, and no
frame attends to a masked frame.

Shapes: B videos, T frame positions, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def frames_there(frames: Tensor) -> Tensor:
    """Return the number of frames up to the last non-zero one, at least 1: (B, T, 3, H, W) -> (B,) int64."""
    is_there = frames.flatten(2).any(dim=-1)  # (B, T)
    places = torch.arange(1, frames.shape[1] + 1, device=frames.device)
    return (is_there * places).amax(dim=1).clamp(min=1)


def without_missing(frames: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Encode videos (B, T, 3, H, W) without their missing frames: (B, d), in the order of the input.

    Args:
        encode: (B', T', 3, H, W) -> (B', d); called once for each number of frames T'.
    """
    counts = frames_there(frames)
    found = counts.unique().tolist()
    if found == [frames.shape[1]]:
        return encode(frames)
    rows = [(counts == count).nonzero()[:, 0] for count in found]
    encoded = torch.cat([encode(frames[each, :count]) for each, count in zip(rows, found)])
    return encoded[torch.cat(rows).argsort()]
