"""Encoding of videos for searches: features depend neither on the batch nor on the order of frames that are averaged.

A tie between a clip and its time-reversed twin then does not depend on rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ctvr.methods.backbone.merged_weights import merged_weights
from ctvr.methods.base import Method
from ctvr.methods.layers.pooling import order_free_sums
from ctvr.orchestrator.processes import beat

FRAMES_PER_BLOCK = 64  # frames in a block of videos that are encoded together


@torch.no_grad()
@merged_weights()
def encode_videos(method: Method, batches: Iterable[Tensor], task: int) -> Tensor:
    """Return features (V, ...) on the CPU of the videos of a task, from batches of frames (B, T, 3, H, W)."""
    return encode_in_blocks(lambda frames: method.encode_video_for_task(frames, task), batches)


def encode_in_blocks(encode: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> Tensor:
    """Encode videos (B, T, ...) in blocks of equal size; the last block is filled up with copies of its last video.

    Kernels choose the order of sums by the size of their input. With one block size for videos of T frames, the
    features of a video do not depend on the other videos of its block. `encode` runs within `order_free_sums`.

    Returns:
        Features (V, ...) of all batches, float32 on the CPU.
    """
    found = []
    for block in _blocks(batches):
        beat()
        size = _size(block)
        whole = (
            torch.cat([block, block[-1:].expand(size - len(block), *block.shape[1:])]) if len(block) < size else block
        )
        with order_free_sums():
            found.append(encode(whole)[: len(block)].float().cpu())
    return torch.cat(found)


def _size(frames: Tensor) -> int:
    return max(1, FRAMES_PER_BLOCK // frames.shape[1])


def _blocks(batches: Iterable[Tensor]) -> Iterable[Tensor]:
    """Yield the videos in blocks of `_size`, across batches; only the last can be smaller."""
    rest: Tensor | None = None
    for frames in batches:
        *whole, rest = (frames if rest is None else torch.cat([rest, frames])).split(_size(frames))
        yield from whole
    if rest is not None:
        yield rest
