"""The index of a video file: its frames in presentation order, as a full decode would show them.

Packets give the index without decoding where they provably agree with a full decode (packets.py); other videos are
decoded once to count their frames (counting.py). This module first rejects a file that is missing, empty, truncated,
larger than the limits, or of a container or codec that is not listed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.container import (
    CUT,
    container_of,
    convert,
    ends_in_packet,
    is_of_media_alone,
    keep_the_rest,
    refusal,
    what_is_missing,
)
from ctvr.orchestrator.video.counting import frames_in_order, seconds_of
from ctvr.orchestrator.video.packets import Packets, Reader

_CODECS = frozenset(
    (
        *("h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "libaom-av1", "theora", "prores"),
        *("mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4", "msmpeg4v3", "h263", "flv"),
        *("mjpeg", "vc1", "wmv1", "wmv2", "wmv3", "dnxhd", "cfhd"),
        # codecs of old cameras and programs
        *("dvvideo", "mjpegb", "svq1", "svq3", "cinepak", "msvideo1", "indeo3", "indeo4", "indeo5", "vp6", "vp6f"),
        *("qtrle", "rpza", "h261", "huffyuv", "ffvhuff", "ffv1", "rawvideo", "utvideo", "magicyuv", "lagarith", "v210"),
        # codecs of screen recorders and newer encoders
        *("png", "zmbv", "flashsv", "flashsv2", "tscc", "tscc2", "cscd", "fraps", "msrle", "smc", "mss1", "mss2"),
        *("jpeg2000", "vvc", "gif"),
    )
)
_NO_VIDEO = "has no video stream that can be decoded"
_STILLS = ("mjpeg", "png")  # one image next to sound is cover art, which Matroska does not mark
HIDDEN = "its edit list hides every packet"
# Containers that store the times of packets in file order: a frame has the time of the packet after which it is shown
_PLACED = ("avi", "asf")
_RAW = ("h264", "hevc", "mpegvideo", "m4v")  # streams without a container: they have a rate and no times
_TOO_FAST = 1.5  # a declared rate is ignored if frames are longer by this factor


@dataclass(frozen=True)
class Limits:
    """Limits on one file; a file that exceeds a limit is rejected.

    `memory_bytes` and the kill after `max_seconds` need a child process (`ctvr.orchestrator.video.pool.Decoder`).
    """

    max_pixels: int = 7680 * 4320  # per frame
    max_frames: int = 1_000_000  # in the whole video: 9 hours at 30 fps
    max_seconds: float = 120.0  # wall-clock
    memory_bytes: int = 4 * 2**30  # in addition to what the idle child uses
    strict: bool = True  # whether to reject frames with concealed damage, which the released code accepts

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_frames", "max_seconds", "memory_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Index:
    """The frames of a video in presentation order."""

    container: str
    codec: str
    width: int
    height: int
    fps: float
    times: np.ndarray  # (N,) seconds since the first frame
    pts: np.ndarray | None  # (N,) timestamps of the packets in units of the stream; None if frames were counted
    keys: np.ndarray  # (K,) pts where decoding can begin
    why: str = ""  # reason why the frames were counted by decoding; empty if they were not


class Watch:
    """The wall-clock limit of one file, checked between frames."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.seconds = path, limits.max_seconds
        self.end = time.monotonic() + limits.max_seconds
        self.hint = ""  # reason why a video takes long, for the message

    def check(self) -> None:
        """Raise VideoError if the time limit is exceeded."""
        if time.monotonic() > self.end:
            text = f"took longer than {self.seconds:g} seconds (limit max_seconds){self.hint}"
            raise VideoError(str(self.path), text)


def check_size(path: Path, width: int, height: int, limits: Limits) -> None:
    """Reject frames that are too large, or so narrow that the resize would make them large.

    Raises:
        VideoError: for such frames; the message gives the size and the limit.
    """
    if min(width, height) <= 0 or max(width, height) > 64 * min(width, height):
        raise VideoError(str(path), f"frames of {width}x{height} have no usable shape")
    if width * height > limits.max_pixels:
        raise VideoError(str(path), f"frames of {width}x{height} exceed the limit max_pixels={limits.max_pixels}")


def frame_seconds(times: np.ndarray) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0


@contextmanager
def translate_av_errors(path: Path) -> Iterator[None]:
    """Convert FFmpeg's errors and MemoryError to VideoErrors of this file."""
    import av

    try:
        yield
    except (av.FFmpegError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VideoError(str(path), f"is damaged or not a video ({reason}). {keep_the_rest(path)}") from None
    except EOFError:
        text = "is damaged: its last picture cannot be decoded, or the file is truncated there"
        raise VideoError(str(path), f"{text}. {keep_the_rest(path)}") from None
    except MemoryError:
        raise VideoError(str(path), "needs more memory than the limit memory_bytes") from None


@contextmanager
def open_video(path: Path, container: str, **options: str) -> Iterator[tuple[Any, Any]]:
    """Open the file in PyAV (local files only, one thread) and yield it with its main video stream.

    Raises:
        VideoError: if it cannot be opened or has no video stream.
    """
    import av

    options["protocol_whitelist"] = "file"
    with (
        translate_av_errors(path),
        av.open(str(path.absolute()), format=container, options=options, metadata_errors="ignore") as file,
    ):
        stream = main_video_stream(file)
        if stream is None or stream.codec_context is None:
            raise VideoError(str(path), _NO_VIDEO)
        stream.codec_context.thread_count = 1
        yield file, stream


def main_video_stream(file: Any) -> Any:
    """Return the main video stream of an open file; None if it has no stream other than cover images."""
    from av.stream import Disposition

    pictures = Disposition.attached_pic | Disposition.timed_thumbnails
    films = [stream for stream in file.streams.video if not stream.disposition & pictures]
    best = file.streams.best("video")
    return best if best in films else next(iter(films), None)


def read_index(path: Path, limits: Limits, watch: Watch) -> Index:
    """Index a video by its packets if they prove which frames are shown, otherwise by decoding all of it.

    Raises:
        VideoError: if the file is missing, empty, not a supported video, truncated, damaged or over a limit.
    """
    container, missing = _check_file(path)
    if missing and limits.strict and not is_of_media_alone(missing):
        raise VideoError(str(path), missing)
    try:
        with open_video(path, container) as (file, stream):
            found = _read_packets(path, container, file, stream, limits, watch)
            declared, rate, base = stream.frames, stream.average_rate, float(stream.time_base)
            codec, width, height = _picture(stream)
            is_cover = found.count == 1 and codec in _STILLS and file.streams.audio
    except VideoError as error:
        raise VideoError(str(path), missing if missing and limits.strict else error.reason) from None
    if is_cover:
        raise VideoError(str(path), _NO_VIDEO)
    if limits.strict and missing and found.count != declared:
        raise VideoError(str(path), missing)
    if limits.strict and container == "mov" and found.count < declared:
        _check_samples(path, container, declared)
    if not found.count:
        raise VideoError(str(path), "has no frames")
    if found.why or not len(found.pts):
        end = f"; {CUT}" if ends_in_packet(path, container) else ""
        return count_index(path, container, (found.why or HIDDEN) + end, limits, watch)
    times = (found.pts - found.pts[0]) * base
    fps = float(rate) if rate else 1 / frame_seconds(times) if frame_seconds(times) else 0.0
    return Index(container, codec, width, height, fps, times, found.pts, found.keys)


def count_index(path: Path, container: str, why: str, limits: Limits, watch: Watch) -> Index:
    """Index a video by decoding all of it. Error messages quote `why`, the reason for decoding all of it.

    Raises:
        VideoError: if a packet cannot be decoded, the video has no displayed frame, or a limit is exceeded.
    """
    watch.hint = f"; {why}, so all of it is decoded. {convert(path)} makes a video with an index"
    pts: list[int | None] = []
    with open_video(path, container) as (file, stream):
        codec, width, height = _picture(stream)
        for frame in frames_in_order(file, stream, limits.strict):
            pts.append(None if container in _RAW else frame.dts if container in _PLACED else frame.pts)
            watch.check()
            if len(pts) > limits.max_frames:
                raise VideoError(str(path), f"more frames than the limit max_frames={limits.max_frames}")
        declared = stream.guessed_rate if container in _RAW else stream.average_rate
        rate, base = float(declared or 0), float(stream.time_base)
    if not pts:
        raise VideoError(str(path), "has no frames that can be decoded" + (f": {why}" if why == HIDDEN else ""))
    times = seconds_of(pts, base, rate or 25.0)
    step = frame_seconds(times)
    fps = 1 / step if step and (not rate or rate * step > _TOO_FAST) else rate
    return Index(container, codec, width, height, fps, times, None, np.zeros(0, np.int64), why)


def _check_file(path: Path) -> tuple[str, str | None]:
    """Check that a file exists, is regular and in a known container; return the container and what is missing."""
    try:
        if not path.exists():
            raise VideoError(str(path), "no such file")
        if not path.is_file():
            raise VideoError(str(path), "is not a regular file")
        if path.stat().st_size == 0:
            raise VideoError(str(path), "is empty (0 bytes)")
        container = container_of(path)
        if container is None:
            raise VideoError(str(path), refusal(path))
        return container, what_is_missing(path, container)
    except (OSError, ValueError) as error:
        if isinstance(error, VideoError):
            raise
        raise VideoError(str(path), f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _picture(stream: Any) -> tuple[str, int, int]:
    context = stream.codec_context
    return context.name, context.width, context.height


def _read_packets(path: Path, container: str, file: Any, stream: Any, limits: Limits, watch: Watch) -> Packets:
    """Check codec and sizes, then read all packets without decoding them."""
    codec, width, height = _picture(stream)
    if codec not in _CODECS:
        raise VideoError(
            str(path), f"codec {codec!r} is not on the list of allowed codecs. Convert it: {convert(path)}"
        )
    if not width and not height:
        text = f"is damaged: the data that give the size of its frames are missing. {keep_the_rest(path)}"
        raise VideoError(str(path), text)
    check_size(path, width, height, limits)
    if stream.frames > limits.max_frames and container == "mov":  # in other containers the header is not reliable
        raise VideoError(str(path), f"{stream.frames} frames exceed the limit max_frames={limits.max_frames}")
    reader = Reader(path, container, stream.codec_context)
    for packet in file.demux(stream):
        if not packet.size:  # the flush packet at the end
            continue
        reader.add(packet, limits.strict)
        if reader.count > limits.max_frames:
            raise VideoError(str(path), f"more frames than the limit max_frames={limits.max_frames}")
        if reader.count % 256 == 0:
            watch.check()
    return reader.result()


def _check_samples(path: Path, container: str, declared: int) -> None:
    """Reject an MP4 with samples beyond the end of the file, except samples that its edit list excludes."""
    with open_video(path, container, ignore_editlist="1") as (file, stream):
        count = sum(bool(packet.size) for packet in file.demux(stream))
    if count < declared:
        raise VideoError(str(path), f"is truncated: it has {count} of {declared} declared frames. Download it again")
