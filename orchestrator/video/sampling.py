"""Selection and resizing of frames, by the benchmarks' rules and the video's timestamps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.index import frame_seconds

Rule = Literal["segments", "linspace", "one_per_second"]
MISSING = -1  # index of a frame that the video does not have
NATIVE = 0  # `size` that keeps the video's size
SLACK = 1e-3  # seconds; Matroska rounds timestamps to milliseconds


@dataclass(frozen=True)
class Sampling:
    """The number and size of frames: `num_frames` frames of `size` x `size` pixels, chosen by `rule`.

    `size` NATIVE keeps the video's own width and height. `resize_mode` and `interpolation` are those of
    `resize_and_crop`.
    """

    num_frames: int = 12
    size: int = 224
    rule: Rule = "segments"
    resize_mode: str = "shortest"
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.num_frames < 1:
            raise ValueError(f"num_frames must be >= 1, got {self.num_frames}.")
        if self.size < 1 and self.size != NATIVE:
            raise ValueError(f"size is in pixels and must be >= 1, got {self.size}.")

    def fit(self, image: np.ndarray) -> np.ndarray:
        """Resize an image by `resize_and_crop`."""
        return resize_and_crop(image, self.size, self.resize_mode, self.interpolation)


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video file; width and height as displayed. `fps` and `seconds` are 0.0 for a folder of frames."""

    frames: int
    fps: float
    seconds: float
    width: int
    height: int
    codec: str
    container: str = ""
    counted: str = ""  # why its frames were counted by a full decode; "" if they were not


@dataclass(frozen=True)
class Frames:
    """A decoded clip.

    Attributes:
        frames: (T, H, W, 3) uint8 RGB, upright.
        timestamps: (T,) float64 seconds since the first frame of the video, NaN for a folder of frames and for missing
            frames (`missing_frame`).
        decoder: name of the decoder that produced them ("decord", "pyav", "torchcodec", "images").
        info: properties of the video, None for a folder.
    """

    frames: np.ndarray
    timestamps: np.ndarray
    decoder: str
    info: VideoInfo | None = None


def choose_frames(
    times: np.ndarray,
    num_frames: int,
    segment: tuple[float, float] | None = None,
    rule: Rule = "segments",
    fps: float = 1.0,
) -> np.ndarray:
    """Return the indices of the frames that a published rule selects.

    segments: the middle frame of each of `num_frames` equal parts (CTVR, X-Pool); if there are too few frames, the last
        repeats.
    linspace: from the first to the last frame, int(linspace) (CLIP-ViP at test time); frames repeat if there are too
    few. one_per_second: the first frame of each second, at the rate truncated to an integer; if there are too many,
        int(linspace) of them; if too few, MISSING for the rest (CLIP4Clip, `slice_framepos 2`).

    At a constant rate `segments` is the rule of the benchmark: frames [int(start * fps), min(int(end * fps), N)) are
    cut at `linspace` points truncated to integers. Real timestamps replace index / fps: the first frame is on screen
    at `start`, and the last frame precedes the frame on screen at `end`; at least one frame is kept.

    Args:
        times: (N,) increasing seconds, N >= 1.
        fps: frames per second, for one_per_second.

    Returns:
        (num_frames,) int64 non-decreasing indices into `times`; under one_per_second, MISSING at the end.

    Raises:
        ValueError: if the segment starts after the last frame.
    """
    first, stop = 0, len(times)
    if segment is not None:
        if segment[0] > times[-1] + frame_seconds(times) + SLACK:
            raise ValueError(f"the segment starts at {segment[0]:g} s, but the video ends at {times[-1]:.2f} s")
        first = max(int(np.searchsorted(times, segment[0] + SLACK, side="right")) - 1, 0)
        after_end = segment[1] > times[-1] + frame_seconds(times)
        stop = stop if after_end else int(np.searchsorted(times, segment[1] + SLACK, side="right")) - 1
        stop = max(stop, first + 1)
    if rule == "linspace":
        return first + np.linspace(0, stop - first - 1, num_frames).astype(np.int64)
    if rule == "one_per_second":
        last = stop if stop == len(times) else stop + 1  # include the frame that begins the second of `end`
        return _thin(np.arange(first, last, max(1, int(fps))), num_frames)
    parts = min(num_frames, stop - first)
    edges = np.linspace(first, stop, parts + 1).astype(np.int64)
    middles = (edges[:-1] + edges[1:] - 1) // 2
    return np.concatenate([middles, np.full(num_frames - parts, middles[-1])])


def _thin(chosen: np.ndarray, num_frames: int) -> np.ndarray:
    if len(chosen) > num_frames:
        return chosen[np.linspace(0, len(chosen) - 1, num_frames).astype(np.int64)]
    return np.concatenate([chosen, np.full(num_frames - len(chosen), MISSING)]).astype(np.int64)


@cache
def missing_frame(size: int) -> np.ndarray:
    """Return the noise image, (size, size, 3) uint8, that is stored in place of a missing frame.

    In batches it is replaced by zeros after the normalization (orchestrator/data/batches.py).
    """
    noise = np.random.RandomState(20210418).randint(0, 256, (size, size, 3)).astype(np.uint8)
    noise.setflags(write=False)
    return noise


def resize_and_crop(
    image: np.ndarray, size: int, resize_mode: str = "shortest", interpolation: str = "bicubic"
) -> np.ndarray:
    """Resize (antialiased) and crop the center, as open_clip does: (H, W, 3) -> (size, size, 3) uint8.

    Args:
        size: side of the result in pixels; NATIVE returns the image unchanged.
        resize_mode: `shortest` resizes the shorter side to `size` pixels; `squash` resizes both sides to it; `longest`
            resizes the longer side to it, and pads the shorter side with black.
        interpolation: `bicubic` or `bilinear`.
    """
    if size == NATIVE:
        return image
    height, width = image.shape[:2]
    short, long = min(height, width), max(height, width)
    if resize_mode == "squash":
        new_height, new_width = size, size
    elif resize_mode == "longest":
        new_height, new_width = (max(1, round(side / (long / size))) for side in (height, width))
    else:
        new_height, new_width = size * height // short, size * width // short
    if (new_height, new_width) != (height, width):
        kernel = Image.Resampling.BILINEAR if interpolation == "bilinear" else Image.Resampling.BICUBIC
        image = np.asarray(Image.fromarray(image).resize((new_width, new_height), kernel))
    if resize_mode == "longest":
        above, left = (size - new_height) // 2, (size - new_width) // 2
        sides = (above, size - new_height - above), (left, size - new_width - left)
        return np.pad(image, (*sides, (0, 0)))
    top, left = round((new_height - size) / 2), round((new_width - size) / 2)
    return np.ascontiguousarray(image[top : top + size, left : left + size])


def checked_segment(path: Path, segment: tuple[float, float] | None) -> tuple[float, float] | None:
    if segment is None:
        return None
    start, end = (float(x) for x in segment)
    if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
        raise VideoError(str(path), f"segment ({start:g}, {end:g}) must be 0 <= start < end, in seconds")
    return start, end
