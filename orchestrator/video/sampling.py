"""Which frames of a film, and how large: the choice of the benchmark, at the film's own timestamps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from orchestrator.errors import VideoError
from orchestrator.video.index import frame_seconds

SLACK = 1e-3  # seconds; Matroska rounds timestamps to milliseconds


@dataclass(frozen=True)
class Sampling:
    """Which frames, and how large: `num_frames` frames of `size` x `size` pixels."""

    num_frames: int = 12
    size: int = 224

    def __post_init__(self) -> None:
        if self.num_frames < 1:
            raise ValueError(f"num_frames must be >= 1, got {self.num_frames}.")
        if self.size < 1:
            raise ValueError(f"size counts pixels and must be >= 1, got {self.size}.")


@dataclass(frozen=True)
class Frames:
    """frames (T, H, W, 3) uint8 RGB, upright; timestamps (T,) float64 seconds since the first frame of the film,
    NaN for a folder of frames; decoder: the one that produced them ("decord", "pyav", "images")."""

    frames: np.ndarray
    timestamps: np.ndarray
    decoder: str


def choose_frames(times: np.ndarray, num_frames: int, segment: tuple[float, float] | None = None) -> np.ndarray:
    """The middle frame of each of `num_frames` equal parts.

    At a constant rate this is the rule of the benchmark: frames [int(start * fps), min(int(end * fps), N)) are
    cut at `linspace` points truncated to integers. Real timestamps replace index / fps: the first frame is the one on
    screen at `start`, the last lies before the one on screen at `end`; at least one frame is kept.

    Args:
        times: (N,) increasing seconds, N >= 1.

    Returns:
        (num_frames,) int64 non-decreasing indices into `times`; the last repeats if there are too few frames.

    Raises:
        ValueError: if the segment starts behind the last frame.
    """
    first, stop = 0, len(times)
    if segment is not None:
        if segment[0] > times[-1] + frame_seconds(times) + SLACK:
            raise ValueError(f"segment starts at {segment[0]:g} s, the film ends at {times[-1]:.2f} s")
        first = max(int(np.searchsorted(times, segment[0] + SLACK, side="right")) - 1, 0)
        after_end = segment[1] > times[-1] + frame_seconds(times)
        stop = stop if after_end else int(np.searchsorted(times, segment[1] + SLACK, side="right")) - 1
        stop = max(stop, first + 1)
    parts = min(num_frames, stop - first)
    edges = np.linspace(first, stop, parts + 1).astype(np.int64)
    middles = (edges[:-1] + edges[1:] - 1) // 2
    return np.concatenate([middles, np.full(num_frames - parts, middles[-1])])


def resize_and_crop(image: np.ndarray, size: int) -> np.ndarray:
    """Resize the shorter side to `size` (antialiased bicubic), cut the centre: (H, W, 3) -> (size, size, 3) uint8."""
    height, width = image.shape[:2]
    short = min(height, width)
    new_height, new_width = size * height // short, size * width // short
    if (new_height, new_width) != (height, width):
        image = np.asarray(Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BICUBIC))
    top, left = round((new_height - size) / 2), round((new_width - size) / 2)
    return np.ascontiguousarray(image[top : top + size, left : left + size])


def checked_segment(path: Path, segment: tuple[float, float] | None) -> tuple[float, float] | None:
    if segment is None:
        return None
    start, end = (float(x) for x in segment)
    if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
        raise VideoError(str(path), f"segment ({start:g}, {end:g}) must be 0 <= start < end, in seconds")
    return start, end
