"""Pooling of frame features into one video feature. Shapes: B videos, T frames, d joint embedding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

FrameNorm = Literal["none", "l2"]
_BY_VALUE: ContextVar[bool] = ContextVar("by_value", default=False)


@contextmanager
def order_free_sums() -> Iterator[None]:
    """Context manager: `frame_sum` and `frame_mean` of this thread sort each feature's values before they add them.

    A sum of floats depends on the order of its terms; a sum of sorted values is equal for every order of frames. A
    method that averages frames then computes equal features for a clip and for the same clip in reverse, so that their
    scores tie. Training does not sort.
    """
    token = _BY_VALUE.set(True)
    try:
        yield
    finally:
        _BY_VALUE.reset(token)


def frame_sum(frames: Tensor) -> Tensor:
    """Sum (B, T, ...) over T; inside `order_free_sums` the sum is bit-identical for every order of the frames."""
    return _in_order(frames).to(frames.dtype) if _BY_VALUE.get() else frames.sum(dim=1)


def frame_mean(frames: Tensor) -> Tensor:
    """Average (B, T, ...) over T; inside `order_free_sums` the mean is bit-identical for every order of the frames."""
    return (_in_order(frames) / frames.shape[1]).to(frames.dtype) if _BY_VALUE.get() else frames.mean(dim=1)


def _in_order(frames: Tensor) -> Tensor:
    """Sum the values of each feature over the frames (B, T, ...), in ascending order and at least in float32."""
    terms = frames.to(torch.promote_types(frames.dtype, torch.float32)).sort(dim=1).values
    return reduce(torch.add, terms.unbind(dim=1))


def mean_pool(frames: Tensor, frame_norm: FrameNorm = "none") -> Tensor:
    """Average frame features (B, T, d) and normalize the mean: (B, d) float32.

    Args:
        frames: (B, T, d) joint embeddings, the output of the tower.
        frame_norm: `l2` normalizes each frame first (CLIP4Clip, arXiv:2104.08860); `none` does not (AvgPool of
            CTVR's released code).
    """
    frames = frames.float()
    if frame_norm == "l2":
        frames = F.normalize(frames, dim=-1)
    return F.normalize(frame_mean(frames), dim=-1)
