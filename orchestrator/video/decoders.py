"""Adapters of the decoders PyAV, decord and torchcodec, each imported on first use.

Each takes the frames `wanted` of an index, by number in ascending order, and yields (number, upright (H, W, 3) uint8
image). decord and torchcodec conceal damage without an error, and may return other frames: see `check_same`.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ctvr.orchestrator.errors import ConfigError, IndexDisagrees, VideoError
from ctvr.orchestrator.video.container import keep_the_rest
from ctvr.orchestrator.video.counting import REORDERED, frames_in_order
from ctvr.orchestrator.video.index import (
    Index,
    Limits,
    Watch,
    check_size,
    frame_seconds,
    open_video,
    translate_av_errors,
)
from ctvr.orchestrator.video.sampling import SLACK

Images = Iterator[tuple[int, np.ndarray]]
_Frames = Iterator[tuple[int, Any, tuple[int, ...] | None]]  # PyAV frames, each with its display matrix

PARTS = 16  # parts per side in which frames are compared
# Tolerance of the brightness (0 to 255) of any part. Colors of decord differ by at most 1.8 (10 bits; interlaced 0.5),
# its wrong frames of a moving counter by 12 to 110
UNLIKE = 6.0
# Codecs whose slices may end with any number of zero bytes (ISO 13818-2, 5.2.3), which FFmpeg's bitstream check reports
# as damage
_STUFFED = ("mpeg1video", "mpeg2video")
_SKEW = 0.02  # ratio of the matrix's smaller to its larger part, up to which it rotates by a multiple of 90 degrees


def read_pyav(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> Images:
    for i, frame, matrix in _pyav_frames(path, index, wanted, limits, watch):
        check_size(path, frame.width, frame.height, limits)
        with translate_av_errors(path):
            image = frame.to_ndarray(format="rgb24", threads=1)
        yield i, upright(image, matrix)


def brightness(image: np.ndarray) -> np.ndarray:
    """Return the mean brightness (n, n), 0 to 255, of n x n equal parts of an image (size, size, 3), n about 16."""
    side = max(1, len(image) // PARTS)
    count = len(image) // side
    luma = image[: count * side, : count * side] @ np.array([0.299, 0.587, 0.114])
    return luma.reshape(count, side, count, side).mean(axis=(1, 3))


def check_same(path: Path, name: str, second: float, image: np.ndarray, known: np.ndarray) -> None:
    """Reject a decoder's frame (size, size, 3) if its `brightness` differs from `known`, PyAV's brightness.

    Decoders that seek to a key frame may start at a wrong key frame with correct timestamps.

    Raises:
        VideoError: if a part differs too much.
    """
    if np.abs(brightness(image) - known).max() > UNLIKE:
        raise VideoError(str(path), f"{name} returns a wrong frame at {second:.2f} s. Use data.decoder=pyav.")


def _pyav_frames(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> _Frames:
    """Yield the wanted frames; reject a corrupt frame if `limits.strict`.

    Raises:
        IndexDisagrees: if the decoder returns other frames than the index lists.
    """
    if index.pts is not None:
        done: set[int] = set()
        try:
            for found in _walk(path, index, wanted, limits, watch, seek=True):
                done.add(found[0])
                yield found
            return
        # An inexact seek, or a false key frame, looks like damage. Decode once more from the beginning: real damage
        # shows there, too
        except (IndexDisagrees, VideoError):
            watch.check()
            wanted = [i for i in wanted if i not in done]
    yield from _walk(path, index, wanted, limits, watch, seek=False)


def _walk(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch, seek: bool) -> _Frames:
    """Decode in order and keep the wanted frames; seek to a preceding key frame where that saves work.

    Every decoded frame must be the next one in the index. This detects decoders that start at a wrong position, drop a
    packet or reorder frames.

    Raises:
        IndexDisagrees: if a frame is not the next one in the index.
    """
    pts = index.pts
    with open_video(path, index.container) as (file, stream):
        if limits.strict:  # report damaged data instead of guessing the missing pixels
            checks = "crccheck+buffer+explode" if index.codec in _STUFFED else "crccheck+bitstream+buffer+explode"
            stream.codec_context.options = {"err_detect": checks}
        frames, place, key = frames_in_order(file, stream, limits.strict), -1, None
        matrix: tuple[int, ...] | None = None  # a display matrix of H.264 holds until the next key frame
        for i in wanted:
            if seek and pts is not None and (jump := _key_before(index, i, place)) is not None:
                key = jump
                file.seek(key, stream=stream, backward=True)
                frames, place = frames_in_order(file, stream, limits.strict), int(np.searchsorted(pts, key)) - 1
            for frame in frames:
                watch.check()
                if frame.key_frame:  # reading it for every frame would cost a tenth of the decoding time
                    matrix = display_matrix(frame)
                if key is not None:
                    if frame.pts is None or frame.pts < key:  # precedes the key frame of the seek
                        continue
                    if not frame.key_frame:
                        raise IndexDisagrees(index.times[place + 1])
                    key = None
                place += 1
                if pts is not None and (place == len(pts) or frame.pts != pts[place]):
                    raise IndexDisagrees(index.times[min(place, len(pts) - 1)])
                if place == i:
                    if limits.strict and frame.is_corrupt:
                        cut = ", or the file is truncated there" * (i + REORDERED >= len(index.times))
                        text = f"is damaged: the frame at {index.times[i]:.2f} s is corrupt{cut}. {keep_the_rest(path)}"
                        raise VideoError(str(path), text)
                    yield i, frame, display_matrix(frame) or matrix
                    break
            else:
                raise IndexDisagrees(index.times[i])


def _key_before(index: Index, wanted: int, place: int) -> int | None:
    """Return the pts of the key frame to seek to, None if the decoder is past it or begins there anyway."""
    assert index.pts is not None
    before = int(np.searchsorted(index.keys, index.pts[wanted], side="right")) - 1
    if before < 0 or index.keys[before] <= index.pts[max(place, 0)]:
        return None
    return int(index.keys[before])


def read_decord(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> Images:
    """Decode as `read_pyav`; reject a file if decord's frames or times differ from the index.

    Raises:
        VideoError: if decord cannot be loaded, cannot decode the file or disagrees with the index.
    """
    try:
        import decord
    except (ImportError, OSError) as error:
        raise VideoError(str(path), f"decord cannot be loaded ({error})") from None
    decord.logging.set_level(decord.logging.QUIET)
    try:
        yield from _ask_decord(decord, path, index, wanted, watch)
    except (decord.DECORDError, decord.DECORDLimitReachedError, IndexError, UnicodeError) as error:
        lines = [line.split("Check failed:")[-1].strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:160] if lines else type(error).__name__
        raise VideoError(str(path), f"decord cannot decode it ({reason})") from None
    except MemoryError:
        raise VideoError(str(path), "decord needs more memory than the limit memory_bytes") from None


def _ask_decord(decord: Any, path: Path, index: Index, wanted: list[int], watch: Watch) -> Images:
    reader = decord.VideoReader(str(path.absolute()), ctx=decord.cpu(0), num_threads=1)
    if len(reader) != len(index.times):
        raise VideoError(str(path), f"decord reads {len(reader)} of {len(index.times)} frames")
    begins = reader.get_frame_timestamp([0, *wanted])[:, 0]
    tolerance = max(SLACK, frame_seconds(index.times) / 2)
    if np.abs(begins[1:] - begins[0] - index.times[wanted]).max() > tolerance:
        raise VideoError(str(path), "decord's frame times differ from the container's")
    for i in wanted:
        watch.check()
        yield i, reader[i].asnumpy()


def read_torchcodec(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> Images:
    """Decode as `read_pyav`; reject a file if torchcodec's frames or times differ from the index.

    Raises:
        ConfigError: if torchcodec cannot be loaded.
    """
    torchcodec_version()
    try:
        yield from _ask_torchcodec(path, index, wanted, limits, watch)
    except (RuntimeError, IndexError, UnicodeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        if "allocate memory" in lines[0] or "bad_alloc" in lines[0]:
            raise VideoError(str(path), "torchcodec needs more memory than the limit memory_bytes") from None
        reason = re.sub(r"^.*\.(cpp|h):\d+, ", "", lines[0])[:160]  # its lines begin with a location in its sources
        raise VideoError(str(path), f"torchcodec cannot decode it ({reason})") from None
    except MemoryError:
        raise VideoError(str(path), "torchcodec needs more memory than the limit memory_bytes") from None


def _ask_torchcodec(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> Images:
    from torchcodec.decoders import VideoDecoder

    video = VideoDecoder(
        str(path.absolute()), dimension_order="NHWC", num_ffmpeg_threads=1, device="cpu", seek_mode="exact"
    )
    if len(video) != len(index.times):
        raise VideoError(str(path), f"torchcodec reads {len(video)} of {len(index.times)} frames")
    begin = float(video.metadata.begin_stream_seconds or 0.0)
    tolerance = max(SLACK, frame_seconds(index.times) / 2)
    for i in wanted:
        watch.check()
        frame = video.get_frame_at(i)  # one at a time, because a batch would keep all frames in full size
        # times of the returned frame, not of the requested one: in MPEG streams they differ
        if abs(frame.pts_seconds - begin - index.times[i]) > tolerance:
            raise VideoError(str(path), "torchcodec's frame times differ from the container's")
        image = frame.data.numpy()
        check_size(path, image.shape[1], image.shape[0], limits)
        yield i, image


@cache
def torchcodec_version() -> str:
    """Load torchcodec and the system's FFmpeg, and return the versions of both for the keys of the store.

    Raises:
        ConfigError: if one of them cannot be loaded.
    """
    try:
        from torchcodec._core import get_ffmpeg_library_versions  # the public function returns only 5 for 5.1.9

        ffmpeg = get_ffmpeg_library_versions()["ffmpeg_version"]
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0][:120].rstrip(" .:")  # the rest is about each FFmpeg version
        raise ConfigError(
            f"decoder: 'torchcodec' cannot be loaded ({type(error).__name__}: {reason}). Install FFmpeg's shared "
            "libraries (Debian: apt-get install ffmpeg) and the torchcodec version for this torch, or use pyav."
        ) from None
    return f"torchcodec-{importlib.metadata.version('torchcodec')}-ffmpeg-{ffmpeg}"


READERS: dict[str, Callable[[Path, Index, list[int], Limits, Watch], Images]] = {
    "pyav": read_pyav,
    "decord": read_decord,
    "torchcodec": read_torchcodec,
}


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
