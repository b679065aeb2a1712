"""Pooling of frame features into one video feature. Shapes: B videos, T frames, d joint embedding."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

FrameNorm = Literal["none", "l2"]


def mean_pool(frames: Tensor, frame_norm: FrameNorm = "none") -> Tensor:
    """Average frame features (B, T, d) and normalise the mean: (B, d) float32.

    Args:
        frames: (B, T, d) joint embeddings, the output of the tower.
        frame_norm: `l2` normalises each frame first (CLIP4Clip, arXiv:2104.08860); `none`
            does not (CTVR's released AvgPool).
    """
    frames = frames.float()
    if frame_norm == "l2":
        frames = F.normalize(frames, dim=-1)
    return F.normalize(frames.mean(dim=1), dim=-1)
