"""One video file, or one folder of frames, becomes a clip of uint8 frames with their timestamps, in this process.

Which frames: `choose_frames` of sampling.py, of the film or of a time segment. The index of frames comes from
the container's packets in presentation order, so that both decoders are asked for the same frames and the
timestamps are those of the file, also at a variable frame rate. PyAV decodes, once, and refuses frames that FFmpeg
calls damaged. decord patches such frames up without a word, so where it is asked for, PyAV decodes beside it. The
resize is one piece of code behind both.

Measured with decord 0.6.0 and PyAV 18.1: bit-identical frames and timestamps for 8-bit h264 (of any chroma, range,
rotation and size that was tried), hevc, vp8, vp9, mpeg4, mjpeg and flv. Not for 10-bit h264, whose frames are the same
but for another interpolation of colour at edges (mean difference 3.1 of 255), and not for wmv2 (5.4). decord finds no
stream in AV1, and in an MPEG program stream it puts frames at other times, so there it is refused.

Nothing here protects the process from a decoder that crashes or hangs: `orchestrator.video.pool.Decoder` does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from orchestrator.digests import digest_sources, imported_sources
from orchestrator.errors import ConfigError, VideoError
from orchestrator.video.index import Index, Limits, Watch, check_size, frame_seconds, named_errors, opened, read_index
from orchestrator.video.sampling import (
    MISSING,
    SLACK,
    Frames,
    Sampling,
    checked_segment,
    choose_frames,
    missing_frame,
    resize_and_crop,
)

log = logging.getLogger(__name__)

_IMAGES = {".png", ".jpg", ".jpeg"}


@dataclass(frozen=True)
class VideoInfo:
    """Facts of one file; width and height as displayed. `fps` and `seconds` are 0.0 for a folder of frames."""

    frames: int
    fps: float
    seconds: float
    width: int
    height: int
    codec: str


def decode(
    path: str | Path,
    sampling: Sampling,
    segment: tuple[float, float] | None = None,
    decoder: str = "pyav",
    limits: Limits | None = None,
) -> Frames:
    """Decode one clip in this process.

    Args:
        path: a video file, or a folder of .png/.jpg frames in the order of the numbers in their names. A folder
            holds frames that were already cut to their segment: `segment` does not apply to it.
        sampling: T = `num_frames` and the side of the square frames.
        segment: (start, end) in seconds since the first frame; an end behind the film's is moved to it.
        decoder: "pyav", "decord" or "auto" (decord, then PyAV where decord cannot).

    Raises:
        VideoError: if the file is missing, empty, damaged, no video, or over a limit.
        ConfigError: if `decoder` is unknown or not installed.
    """
    order, limits, path = _decoders(decoder), limits or Limits(), Path(path)
    watch = Watch(path, limits)
    if path.is_dir():
        return _decode_folder(path, sampling, limits, watch)
    index = read_index(path, limits, watch)
    try:
        segment = checked_segment(path, segment)
        chosen = choose_frames(index.times, sampling.num_frames, segment, sampling.rule, index.fps)
    except ValueError as error:
        raise error if isinstance(error, VideoError) else VideoError(str(path), str(error)) from None
    wanted = sorted({*chosen.tolist()} - {MISSING})
    for name in order:
        try:
            read = _read_decord if name == "decord" else _read_pyav
            if limits.strict and name == "decord":  # decord patches damage up without a word
                _check_by_pyav(path, index, wanted, limits, watch)
            small = {i: resize_and_crop(image, sampling.size) for i, image in read(path, index, wanted, limits, watch)}
            times = np.where(chosen == MISSING, np.nan, index.times[chosen])
            return Frames(_stacked(small, chosen, sampling.size), times, name)
        except VideoError as error:
            if name == order[-1]:
                raise
            watch.check()
            log.info("%s; trying %s", error, order[-1])
    raise AssertionError("unreachable")


def probe(path: str | Path, limits: Limits | None = None) -> VideoInfo:
    """Count the frames of a file and read its rate, duration, size and codec; one frame is decoded.

    Raises:
        VideoError: as `decode`.
    """
    limits, path = limits or Limits(), Path(path)
    watch = Watch(path, limits)
    if path.is_dir():
        files = _frame_files(path)
        image = _open_image(path, files[0], limits)
        return VideoInfo(len(files), 0.0, 0.0, image.shape[1], image.shape[0], files[0].suffix[1:].lower())
    index = read_index(path, limits, watch)
    ((_, image),) = _read_pyav(path, index, [0], limits, watch)
    seconds = float(index.times[-1]) + (1 / index.fps if index.fps else 0.0)
    return VideoInfo(len(index.times), index.fps, seconds, image.shape[1], image.shape[0], index.codec)


def decoder_version(name: str = "pyav", strict: bool = True) -> str:
    """Everything that decides the pixels besides the file and the sampling; part of every store key.

    The rule is the sources that decide frames: this file and what it imports of its room. `strict` is that of the
    `Limits` in use.

    Raises:
        ConfigError: if the decoder is unknown or not installed.
    """
    import av

    versions = {"pyav": f"pyav-{av.__version__}-ffmpeg-{av.ffmpeg_version_info}"}
    if "decord" in _decoders(name):
        versions["decord"] = f"decord-{importlib.metadata.version('decord')}"
    named = "+".join(versions[decoder] for decoder in _decoders(name))
    rule = digest_sources(imported_sources([Path(__file__).resolve()], "orchestrator/video"))[:12]
    return f"{named}+pillow-{Image.__version__}+rule-{rule}{'' if strict else '+lenient'}"


def _decoders(name: str) -> tuple[str, ...]:
    has_decord = importlib.util.find_spec("decord") is not None
    if name == "auto":
        return ("decord", "pyav") if has_decord else ("pyav",)
    if name not in ("decord", "pyav"):
        raise ConfigError(f"decoder: {name!r} is unknown. Use pyav, decord or auto.")
    if name == "decord" and not has_decord:
        raise ConfigError("decoder: 'decord' is not installed on this machine. Install decord, or use pyav.")
    return (name,)


# -- the decoders: each yields (index of the frame, upright (H, W, 3) uint8 image) in order

_Images = Iterator[tuple[int, np.ndarray]]
_Frames = Iterator[tuple[int, Any]]  # PyAV frames


def _read_pyav(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> _Images:
    for i, frame in _pyav_frames(path, index, wanted, limits, watch):
        check_size(path, frame.width, frame.height, limits)
        with named_errors(path):
            image = frame.to_ndarray(format="rgb24", threads=1)
        yield i, np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90) % 4)) if frame.rotation else image


def _check_by_pyav(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> None:
    for _ in _pyav_frames(path, index, wanted, limits, watch):
        pass


def _pyav_frames(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> _Frames:
    """Yield the wanted frames; refuse a corrupt one if `limits.strict`."""
    if index.pts is not None:
        done: set[int] = set()
        try:
            for i, frame in _walk(path, index, wanted, limits, watch, seek=True):
                done.add(i)
                yield i, frame
            return
        except LookupError:  # an inexact seek: once more, from the beginning
            wanted = [i for i in wanted if i not in done]
    try:
        yield from _walk(path, index, wanted, limits, watch, seek=False)
    except LookupError as error:
        raise VideoError(str(path), f"is damaged: {error.args[0]}") from None


def _walk(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch, seek: bool) -> _Frames:
    """Decode in order and keep the wanted frames, jumping to the key frame before each where that saves work.

    Raises:
        LookupError: if a wanted frame does not come out of the decoder.
    """
    pts = index.pts
    with opened(path, index.container) as (file, stream):
        if limits.strict:  # report damaged data instead of guessing the missing pixels
            stream.codec_context.options = {"err_detect": "crccheck+bitstream+buffer+explode"}
        frames, count, reached = file.decode(stream), -1, None
        for i in wanted:
            if seek and pts is not None:
                key = index.keys[np.searchsorted(index.keys, pts[i], side="right") - 1]
                if key > (index.keys[0] if reached is None else reached):
                    file.seek(int(key), stream=stream, backward=True)
                    frames = file.decode(stream)
            for frame in frames:
                watch.check()
                count, reached = count + 1, frame.pts
                if (count if pts is None else frame.pts) == (i if pts is None else pts[i]):
                    if limits.strict and frame.is_corrupt:
                        raise VideoError(str(path), f"is damaged: the frame at {index.times[i]:.2f} s is corrupt")
                    yield i, frame
                    break
                if pts is not None and frame.pts is not None and frame.pts > pts[i]:
                    raise LookupError(f"frame {i} at {index.times[i]:.2f} s cannot be decoded")
            else:
                raise LookupError(f"frame {i} at {index.times[i]:.2f} s cannot be decoded")


def _read_decord(path: Path, index: Index, wanted: list[int], limits: Limits, watch: Watch) -> _Images:
    """As `_read_pyav`; refuses a file in which decord does not see the frames of the index at their times."""
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


def _ask_decord(decord: Any, path: Path, index: Index, wanted: list[int], watch: Watch) -> _Images:
    reader = decord.VideoReader(str(path.absolute()), ctx=decord.cpu(0), num_threads=1)
    if len(reader) != len(index.times):
        raise VideoError(str(path), f"decord sees {len(reader)} frames of {len(index.times)}")
    begins = reader.get_frame_timestamp([0, *wanted])[:, 0]
    tolerance = max(SLACK, frame_seconds(index.times) / 2)
    if np.abs(begins[1:] - begins[0] - index.times[wanted]).max() > tolerance:
        raise VideoError(str(path), "decord puts its frames at other times than the container")
    for i in wanted:
        watch.check()
        yield i, reader[i].asnumpy()


# -- folders of frames


def _decode_folder(folder: Path, sampling: Sampling, limits: Limits, watch: Watch) -> Frames:
    files = _frame_files(folder)
    # The images count as one a second
    chosen = choose_frames(np.arange(len(files), dtype=np.float64), sampling.num_frames, rule=sampling.rule)
    small: dict[int, np.ndarray] = {}
    for i in sorted({*chosen.tolist()} - {MISSING}):
        watch.check()
        small[i] = resize_and_crop(_open_image(folder, files[i], limits), sampling.size)
    return Frames(_stacked(small, chosen, sampling.size), np.full(sampling.num_frames, np.nan), "images")


def _stacked(small: dict[int, np.ndarray], chosen: np.ndarray, size: int) -> np.ndarray:
    """The chosen frames, one behind the other: (T, size, size, 3)."""
    return np.stack([missing_frame(size) if i == MISSING else small[i] for i in chosen.tolist()])


def _frame_files(folder: Path) -> list[Path]:
    """The images of a folder in the order of the numbers in their names (`frame_2_idx_0040` before `frame_10_...`)."""
    files = [p for p in folder.iterdir() if p.suffix.lower() in _IMAGES and not p.name.startswith(".")]
    if not files:
        raise VideoError(str(folder), "the folder holds no frames (.png, .jpg)")
    return sorted(files, key=lambda p: ([int(n) for n in re.findall(r"\d{1,18}", p.stem)], p.name))


def _open_image(folder: Path, file: Path, limits: Limits) -> np.ndarray:
    try:
        with Image.open(file, formats=["PNG", "JPEG"]) as image:
            check_size(folder, image.width, image.height, limits)
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise VideoError(str(folder), f"{file.name} is damaged or no image ({type(error).__name__})") from None
