"""Small videos for the tests of the decoder, and a child that reads them."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import av
import numpy as np
import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.video.decode import decode, decoder_version
from ctvr.orchestrator.video.sampling import Frames, Sampling, VideoInfo

Result = TypeVar("Result")


def write_video(
    path: Path,
    frames: int = 60,
    codec: str = "libx264",
    times: list[int] | None = None,
    pixels: str = "yuv420p",
    **options: str,
) -> Path:
    """Write 160x96 frames at 25 fps, with a key frame every 12; a gray level encodes the frame number (see
    `read_number`).

    `times` replaces the frames' positions on the 1/25 s grid, for a variable frame rate; `pixels` is the encoder's
    format, `options` are the encoder's.
    """
    y, x = np.mgrid[0:96, 0:160]
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=25, options={"g": "12", **options})
        stream.width, stream.height, stream.pix_fmt = 160, 96, pixels
        for i in range(frames):
            image = np.stack([(x + 3 * i) % 256, (2 * y) % 256, (x * y // 64) % 256], axis=-1).astype(np.uint8)
            image[24:72, 40:120] = 4 * i
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if times is not None:
                frame.pts = times[i]
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def read_number(image: np.ndarray) -> int:
    """Return the frame number of `write_video` that this (size, size, 3) image shows."""
    middle = image.shape[0] // 2
    return round(float(image[middle - 4 : middle + 4, middle - 4 : middle + 4].mean()) / 4)


def probe(path: Path) -> VideoInfo:
    return decode(path, Sampling(num_frames=1)).info


def decode_apart(path: str | Path, *settings: Any, **named: Any) -> Frames:
    """Run `ctvr.orchestrator.video.decode.decode` in a child, as the product does."""
    return run_apart(decode, path, *settings, **named)


def run_apart(function: Callable[..., Result], *settings: Any, **named: Any) -> Result:
    """Call a function in a child.

    decord, and any decoder of damaged videos, may corrupt the memory of its process, so that the process of the tests
    would crash much later. A child that crashes fails its test and is replaced.
    """
    try:
        return _child().submit(function, *settings, **named).result()
    except BrokenProcessPool:
        _child.cache_clear()
        raise


def needs(*decoders: str) -> None:
    """Skip the test, with the reason, if one of these decoders is missing or finds no FFmpeg."""
    for decoder in decoders:
        if reason := _why_not(decoder):
            pytest.skip(reason)


@cache
def _why_not(decoder: str) -> str:
    try:
        _child().submit(decoder_version, decoder).result()
    except ConfigError as error:
        return str(error)
    return ""


@cache
def _child() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))
