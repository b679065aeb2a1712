"""Stored frames as JPEG images, which need about a tenth of the bytes but are lossy and are decoded at every read.

An object has the arrays `jpeg` (the concatenated images of all frames), `ends` (the offset at which each image ends)
and `shape`. A missing frame (`missing_frame`) is stored as an empty image, because batches recognize it by its exact
values.

Shapes: T frames, H = W image size.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

from ctvr.orchestrator.video.sampling import missing_frame


def codec_version(quality: int) -> str:
    """Return the quality and the library versions that determine the decoded pixels, for the store's keys."""
    from PIL import __version__, features

    return f"jpeg-{quality}-pillow-{__version__}-libjpeg-{features.version('libjpeg_turbo') or features.version('jpg')}"


def encode_frames(frames: np.ndarray, quality: int) -> dict[str, np.ndarray]:
    """Encode frames (T, H, W, 3) uint8 as the arrays `jpeg`, `ends` and `shape`.

    Args:
        frames: frames of a video.
        quality: JPEG quality, 1 to 100. At 90 and above, chroma is not subsampled.
    """
    from PIL import Image

    missing, images = missing_frame(frames.shape[1]), []
    for frame in frames:
        file = io.BytesIO()
        if not np.array_equal(frame, missing):
            Image.fromarray(frame).save(file, "jpeg", quality=quality, subsampling=0 if quality >= 90 else 2)
        images.append(np.frombuffer(file.getvalue(), np.uint8))
    return {
        "jpeg": np.concatenate(images),
        "ends": np.cumsum([image.size for image in images]),
        "shape": np.array(frames.shape),
    }


def decode_frames(arrays: Mapping[str, np.ndarray], chosen: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """Decode the frames (T, H, W, 3) uint8 of an object, or only those at the chosen indices."""
    from PIL import Image

    ends, (count, *size) = arrays["ends"], arrays["shape"].tolist()
    numbers = range(count) if chosen is None else chosen
    frames = np.empty((len(numbers), *size), np.uint8)
    for place, number in enumerate(numbers):
        image = arrays["jpeg"][ends[number - 1] if number else 0 : ends[number]]
        frames[place] = Image.open(io.BytesIO(image.data)) if image.size else missing_frame(size[0])
    return frames
