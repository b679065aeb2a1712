"""The frames of one video file in presentation order, read from its packets without decoding them.

What may be wrong with a file is found here first: missing, empty, not on the lists of containers and codecs, cut
short, larger than the limits, fewer packets or seconds than it declares.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.errors import VideoError
from orchestrator.video.container import container_of, what_is_missing

_CODECS = frozenset(
    (
        *("h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "libaom-av1", "theora", "prores"),
        *("mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4", "msmpeg4v3", "h263", "flv"),
        *("mjpeg", "vc1", "wmv1", "wmv2", "wmv3"),
    )
)


@dataclass(frozen=True)
class Limits:
    """What one file may cost before it is refused.

    `memory_bytes` and the kill after `max_seconds` need a child process (`orchestrator.video.pool.Decoder`).
    """

    max_pixels: int = 7680 * 4320  # of one frame
    max_frames: int = 1_000_000  # of the whole film: 9 hours at 30 fps
    max_seconds: float = 120.0  # wall-clock
    memory_bytes: int = 4 * 2**30  # beyond what the idle child uses
    strict: bool = True  # refuse frames that the decoder patched up; False accepts them, as the released code does

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_frames", "max_seconds", "memory_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Index:
    """The frames of a film in presentation order, read from its packets."""

    container: str
    codec: str
    width: int
    height: int
    fps: float
    times: np.ndarray  # (N,) seconds since the first frame
    pts: np.ndarray | None  # (N,) presentation timestamps in units of the stream; None: the container has none
    keys: np.ndarray  # (K,) pts where decoding can begin


class Watch:
    """The wall-clock limit of one file, checked between frames."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.seconds = path, limits.max_seconds
        self.end = time.monotonic() + limits.max_seconds

    def check(self) -> None:
        if time.monotonic() > self.end:
            raise VideoError(str(self.path), f"took longer than {self.seconds:g} seconds (limit max_seconds)")


def check_size(path: Path, width: int, height: int, limits: Limits) -> None:
    """Refuse frames that are too large, or so thin that the resize would make them large.

    Raises:
        VideoError: naming the size and the limit.
    """
    if min(width, height) <= 0 or max(width, height) > 64 * min(width, height):
        raise VideoError(str(path), f"frames of {width}x{height} have no usable shape")
    if width * height > limits.max_pixels:
        raise VideoError(str(path), f"frames of {width}x{height} exceed the limit max_pixels={limits.max_pixels}")


def frame_seconds(times: np.ndarray) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """FFmpeg's and memory errors become VideoErrors of this file."""
    import av

    try:
        yield
    except (av.FFmpegError, UnicodeError) as error:
        raise VideoError(str(path), f"is damaged or no video ({getattr(error, 'strerror', None) or error})") from None
    except MemoryError:
        raise VideoError(str(path), "needs more memory than the limit memory_bytes") from None


@contextmanager
def opened(path: Path, container: str) -> Iterator[tuple[Any, Any]]:
    """The file and its main video stream in PyAV, local files only, one thread; errors as VideoError."""
    import av

    options = {"protocol_whitelist": "file"}
    with (
        named_errors(path),
        av.open(str(path.absolute()), format=container, options=options, metadata_errors="ignore") as file,
    ):
        stream = file.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise VideoError(str(path), "has no video stream that can be decoded")
        stream.codec_context.thread_count = 1
        yield file, stream


def read_index(path: Path, limits: Limits, watch: Watch) -> Index:
    container = _checked_file(path, limits.strict)
    with opened(path, container) as (file, stream):
        codec = stream.codec_context.name
        if codec not in _CODECS:
            raise VideoError(str(path), f"codec {codec!r} is not on the list of allowed codecs")
        width, height = stream.codec_context.width, stream.codec_context.height
        check_size(path, width, height, limits)
        if stream.frames > limits.max_frames:
            raise VideoError(str(path), f"{stream.frames} frames exceed the limit max_frames={limits.max_frames}")
        pts, keys, count = _demux(path, file, stream, limits, watch)
        if count < stream.frames and limits.strict:
            raise VideoError(str(path), f"is damaged: {count} of {stream.frames} declared frames are there")
        if pts is not None and len(keys):
            pts = pts[pts >= keys[0]]  # pictures before the first key frame cannot be decoded
        else:
            pts = None
        rate, base, declared = stream.average_rate, float(stream.time_base), _declared_seconds(file, stream)
    if not count:
        raise VideoError(str(path), "has no frames")
    times = (pts - pts[0]) * base if pts is not None else _times_by_decoding(path, container, rate, limits, watch)
    fps = float(rate) if rate else 1 / frame_seconds(times) if frame_seconds(times) else 0.0
    if (
        limits.strict
        and declared is not None
        and times[-1] + max(1.0, 2 * frame_seconds(times)) < declared - frame_seconds(times)
    ):
        raise VideoError(str(path), f"is damaged: frames end at {times[-1]:.2f} s of {declared:.2f} declared seconds")
    return Index(container, codec, width, height, fps, times, pts, keys)


def _checked_file(path: Path, strict: bool) -> str:
    """The container's name, once the file is known to be there, regular, of an allowed kind, and (strict) whole."""
    try:
        if not path.exists():
            raise VideoError(str(path), "no such file")
        if not path.is_file():
            raise VideoError(str(path), "is not a regular file")
        if path.stat().st_size == 0:
            raise VideoError(str(path), "is empty (0 bytes)")
        container = container_of(path)
        if container is None:
            raise VideoError(str(path), "is no video file (mp4, mov, mkv, webm, avi, flv, wmv, ogg, mpg, ts)")
        missing = what_is_missing(path, container)
    except (OSError, ValueError) as error:
        if isinstance(error, VideoError):
            raise
        raise VideoError(str(path), f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if missing and strict:
        raise VideoError(str(path), missing)
    return container


def _demux(
    path: Path, file: Any, stream: Any, limits: Limits, watch: Watch
) -> tuple[np.ndarray | None, np.ndarray, int]:
    """(sorted pts or None if some are missing or repeated, pts of key frames, number of packets); decodes nothing."""
    pts: list[int] = []
    keys: list[int] = []
    complete, count = True, 0
    for packet in file.demux(stream):
        if not packet.size:  # the flush at the end
            continue
        count += 1
        if packet.is_corrupt and limits.strict:
            raise VideoError(str(path), f"is damaged: packet {count} is corrupt")
        if count > limits.max_frames:
            raise VideoError(str(path), f"more frames than the limit max_frames={limits.max_frames}")
        if count % 256 == 0:
            watch.check()
        if packet.is_discard:  # cut away by an edit list
            continue
        if packet.pts is None:
            complete = False
            continue
        pts.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
    ordered = np.unique(np.asarray(pts, dtype=np.int64))
    return (ordered if complete and len(ordered) == len(pts) else None), np.unique(np.asarray(keys, np.int64)), count


def _declared_seconds(file: Any, stream: Any) -> float | None:
    """How long the video stream says it is (s); the whole file's length only where it has no other stream."""
    if stream.duration is not None and stream.time_base:
        return float(stream.duration * stream.time_base)
    tag = re.fullmatch(r"(\d+):(\d+):([\d.]+)", stream.metadata.get("DURATION", ""))
    if tag:
        return int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])
    if file.duration is not None and len(file.streams) == 1:
        return file.duration / 1e6
    return None


def _times_by_decoding(path: Path, container: str, rate: Any, limits: Limits, watch: Watch) -> np.ndarray:
    """(N,) seconds of a film whose container has no usable timestamps: decode it once and count."""
    times: list[float | None] = []
    with opened(path, container) as (file, stream):
        for frame in file.decode(stream):
            times.append(frame.time)
            watch.check()
            if len(times) > limits.max_frames:
                raise VideoError(str(path), f"more frames than the limit max_frames={limits.max_frames}")
    if not times:
        raise VideoError(str(path), "has no frames that can be decoded")
    known = [t for t in times if t is not None]
    if len(known) == len(times) and all(a < b for a, b in itertools.pairwise(known)):
        return np.asarray(known) - known[0]
    return np.arange(len(times)) / float(rate or 25)
