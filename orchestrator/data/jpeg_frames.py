"""Stored frames as JPEG images: about a tenth of the bytes, at the cost of decoding and of a small loss.

An object has the array `jpeg`, the images of all frames one after another, and `ends`, where each one ends. A frame
that a video does not have (`missing_frame`) is an empty image, since batches recognise it by its exact values.

Shapes: T frames, H = W image size.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

from ctvr.orchestrator.video.sampling import missing_frame


def codec_version(quality: int) -> str:
    """Return everything except the frames that determines the decoded pixels; it is part of a key in the store."""
    from PIL import __version__, features

    return f"jpeg-{quality}-pillow-{__version__}-libjpeg-{features.version('libjpeg_turbo') or features.version('jpg')}"


def encode_frames(frames: np.ndarray, quality: int) -> dict[str, np.ndarray]:
    """Return frames (T, H, W, 3) uint8 as arrays of an object.

    Args:
        frames: frames of a video.
        quality: of JPEG, 1 to 100. From 90 on colours are not halved.
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
    """Return the frames (T, H, W, 3) uint8 of an object, or only those with the chosen numbers."""
    from PIL import Image

    ends, (count, *size) = arrays["ends"], arrays["shape"].tolist()
    numbers = range(count) if chosen is None else chosen
    frames = np.empty((len(numbers), *size), np.uint8)
    for place, number in enumerate(numbers):
        image = arrays["jpeg"][ends[number - 1] if number else 0 : ends[number]]
        frames[place] = Image.open(io.BytesIO(image.data)) if image.size else missing_frame(size[0])
    return frames
