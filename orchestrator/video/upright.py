"""Rotation of frames for display: a video's display matrix (rotation, mirroring) applied to its pixels."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from PIL import Image

_SKEW = 0.02  # ratio of the matrix's smaller to its larger part, up to which it rotates by a multiple of 90 degrees


def display_matrix(frame: Any) -> tuple[int, ...] | None:
    """Return the display matrix of a PyAV frame (9 integers); None if it has none."""
    from av.sidedata.sidedata import Type

    found = frame.side_data.get(Type.DISPLAYMATRIX)
    return struct.unpack("=9i", bytes(found)[:36]) if found is not None else None


def upright(image: np.ndarray, matrix: tuple[int, ...] | None) -> np.ndarray:
    """Rotate and mirror an image (H, W, 3) by its display matrix.

    A point (x, y), y downwards, is shown at (a x + c y, b x + d y). Multiples of 90 degrees and mirroring move pixels;
    any other angle rotates the image about its center in a frame of the same size, as FFmpeg does.
    """
    if matrix is None:
        return image
    a, b, c, d = (float(matrix[i]) for i in (0, 1, 3, 4))
    straight, across = max(abs(a), abs(d)), max(abs(b), abs(c))
    if not straight and not across:
        return image
    if min(straight, across) > _SKEW * max(straight, across):
        image = image[::-1] if a * d < b * c else image
        turned = Image.fromarray(np.ascontiguousarray(image))
        return np.asarray(turned.rotate(-math.degrees(math.atan2(b, a)), Image.Resampling.BILINEAR))
    if across > straight:
        image, a, d = image.swapaxes(0, 1), c, b
    return np.ascontiguousarray(image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])
