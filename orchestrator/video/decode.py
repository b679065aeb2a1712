"""One video file, or one folder of frames, becomes a clip of uint8 frames with their timestamps, in this process.

Which frames: `choose_frames` of sampling.py, of the video or of a time segment. The index of frames comes from
the container's packets in presentation order, so that all decoders (readers.py) are asked for the same frames and the
timestamps are those of the file, also at a variable frame rate. PyAV decodes, once, and refuses frames that FFmpeg
calls damaged. decord and torchcodec patch such frames up, or return others, without a word, so where one of them is
asked for, PyAV decodes beside it and both are compared. The resize is one piece of code behind all.

Measured with decord 0.6.0 and PyAV 18.1: bit-identical frames and timestamps for 8-bit h264 (of any chroma, range,
rotation and size that was tried), hevc, vp8, vp9, mpeg4, mjpeg and flv. Not for 10-bit h264, whose frames are the same
but for another interpolation of colour at edges (mean difference 3.1 of 255). decord finds no stream in AV1. It returns
other frames than those asked for, and calls them right, in hevc with open groups of pictures (x265's default), in WMV
and in MPEG streams: frames are compared with PyAV's, and the file is refused.

Measured with torchcodec 0.17.0 on FFmpeg 5.1.9 and PyAV 18.1 (FFmpeg 8.1.2), all frames: bit-identical frames and
timestamps for 8-bit progressive h264 (of any chroma, range, matrix, rotation and size that was tried), hevc, vp8, vp9,
av1, mpeg4, msmpeg4v2, h263, flv, wmv1, theora and mjpeg, for 10-bit h264 of chroma 4:4:4 and for prores. Not for other
10-bit videos, by another interpolation of colour, which no setting chooses (mean difference 2.9 of 255 in a public
h264 clip; of a test pattern 3.3 to 3.9 in h264 and hevc, 0.9 to 1.0 in av1 and vp9), not for interlaced h264 and mpeg4
(5.1 and 4.7; decord's h264, too), and not always for wmv2 (by 2 at most). In MPEG program and transport streams it
returns frames of other times or none, and behind an edit list it saw another number of frames: refused. Its decoding on
a GPU is not offered: the child's fence shows it none.

Nothing here protects the process from a decoder that crashes or hangs: `ctvr.orchestrator.video.pool.Decoder` does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from ctvr.orchestrator.digests import ROOT, digest_sources, list_imported_sources
from ctvr.orchestrator.errors import ConfigError, IndexDisagrees, VideoError
from ctvr.orchestrator.video.container import keep_the_rest
from ctvr.orchestrator.video.decoders import (
    READERS,
    brightness,
    check_same,
    read_pyav,
    torchcodec_version,
)
from ctvr.orchestrator.video.index import Index, Limits, Watch, check_size, count_index, read_index
from ctvr.orchestrator.video.sampling import (
    MISSING,
    NATIVE,
    Frames,
    Sampling,
    VideoInfo,
    checked_segment,
    choose_frames,
    missing_frame,
    resize_and_crop,
)

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_IMAGES = {".png", ".jpg", ".jpeg"}


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
        segment: (start, end) in seconds since the first frame; an end behind the video's is moved to it.
        decoder: "pyav", "decord", "torchcodec" or "auto" (decord, then PyAV where decord cannot).

    Raises:
        VideoError: if the file is missing, empty, damaged, no video, or over a limit.
        ConfigError: if `decoder` is unknown or not installed.
    """
    order, limits, path = _decoders(decoder), limits or Limits(), Path(path)
    watch = Watch(path, limits)
    if path.is_dir():
        return _decode_folder(path, sampling, limits, watch)
    return _with_index(
        path, limits, watch, lambda index: _decode_film(index, path, sampling, segment, order, limits, watch)
    )


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

    def look(index: Index) -> VideoInfo:
        ((_, image),) = read_pyav(path, index, [0], limits, watch)
        return _info(index, image)

    return _with_index(path, limits, watch, look)


def _with_index(path: Path, limits: Limits, watch: Watch, use: Callable[[Index], Result]) -> Result:
    """Use the index of a video; once more, with frames that are counted, where the decoder shows others."""
    index = read_index(path, limits, watch)
    try:
        return use(index)
    except IndexDisagrees as error:
        why = f"its frames are not those of its packets (at {error.args[0]:.2f} s)"
    try:
        return use(count_index(path, index.container, why, limits, watch))
    except IndexDisagrees as error:
        text = f"is damaged: the frame at {error.args[0]:.2f} s cannot be decoded. {keep_the_rest(path)}"
        raise VideoError(str(path), text) from None


def _decode_film(
    index: Index,
    path: Path,
    sampling: Sampling,
    segment: tuple[float, float] | None,
    order: tuple[str, ...],
    limits: Limits,
    watch: Watch,
) -> Frames:
    try:
        segment = checked_segment(path, segment)
        chosen = choose_frames(index.times, sampling.num_frames, segment, sampling.rule, index.fps)
    except ValueError as error:
        raise error if isinstance(error, VideoError) else VideoError(str(path), str(error)) from None
    wanted = sorted({*chosen.tolist()} - {MISSING})
    for name in order:
        try:
            known: dict[int, np.ndarray] = {}
            if limits.strict and name != "pyav":  # the others patch damage up, or begin elsewhere, without a word
                seen = read_pyav(path, index, wanted, limits, watch)
                known = {i: brightness(resize_and_crop(image, sampling.size)) for i, image in seen}
            small = {}
            for i, image in READERS[name](path, index, wanted, limits, watch):
                small[i] = resize_and_crop(image, sampling.size)
                if i in known:
                    check_same(path, name, float(index.times[i]), small[i], known[i])
            times = np.where(chosen == MISSING, np.nan, index.times[chosen])
            return Frames(_stacked(small, chosen, sampling.size), times, name, _info(index, image))
        except VideoError as error:
            if name == order[-1]:
                raise
            watch.check()
            log.info("%s; trying %s", error, order[-1])
    raise AssertionError("unreachable")


def _info(index: Index, image: np.ndarray) -> VideoInfo:
    seconds = float(index.times[-1]) + (1 / index.fps if index.fps else 0.0)
    height, width = image.shape[:2]
    return VideoInfo(len(index.times), index.fps, seconds, width, height, index.codec, index.container, index.why)


def decoder_version(name: str = "pyav", strict: bool = True) -> str:
    """Everything that decides the pixels besides the file and the sampling; part of every store key.

    The rule is the sources that decide frames: this file and what it imports of its room. `strict` is that of the
    `Limits` in use.

    Raises:
        ConfigError: if the decoder is unknown, not installed or (torchcodec) cannot be loaded.
    """
    import av

    order = _decoders(name)
    versions = {"pyav": f"pyav-{av.__version__}-ffmpeg-{av.ffmpeg_version_info}"}
    if "decord" in order:
        versions["decord"] = f"decord-{importlib.metadata.version('decord')}"
    if name == "torchcodec":
        versions["torchcodec"] = torchcodec_version()
    named = "+".join(versions[decoder] for decoder in order)
    rule = digest_sources(list_imported_sources([ROOT / "orchestrator/video/decode.py"], "orchestrator/video"))[:12]
    return f"{named}+pillow-{Image.__version__}+rule-{rule}{'' if strict else '+lenient'}"


def _decoders(name: str) -> tuple[str, ...]:
    if name == "auto":
        return ("decord", "pyav") if importlib.util.find_spec("decord") is not None else ("pyav",)
    if name not in READERS:
        raise ConfigError(f"decoder: {name!r} is unknown. Use {', '.join(READERS)} or auto.")
    if name != "pyav" and importlib.util.find_spec(name) is None:
        more = " and FFmpeg's shared libraries (Debian: apt-get install ffmpeg)" if name == "torchcodec" else ""
        raise ConfigError(f"decoder: {name!r} is not installed on this machine. Install {name}{more}, or use pyav.")
    return (name,)


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
    """The chosen frames, one behind the other: (T, size, size, 3), or in the size of the first where that is NATIVE."""
    if size == NATIVE:
        height, width = small[min(small)].shape[:2]
        images = {i: Image.fromarray(image).resize((width, height)) for i, image in small.items()}  # it may change
        small = {i: np.asarray(image) for i, image in images.items()}
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
