"""Decoding of a video file or a folder of frames to a clip of uint8 frames with timestamps, in this process.

`choose_frames` of sampling.py selects the frames of the video or of a time segment. The index of frames comes from
the container's packets in presentation order. So all decoders (decoders.py) get the same frames, with the timestamps
of the file, even at a variable frame rate. PyAV decodes once and rejects frames that FFmpeg
reports as damaged. decord and torchcodec conceal such damage, or return other frames, without an error. If one of
them is selected, PyAV also decodes the file, and both results are compared. All decoders share one resizing function.

Measured with decord 0.6.0 and PyAV 18.1: bit-identical frames and timestamps for 8-bit h264 (of any chroma, range,
rotation and size that was tried), hevc, vp8, vp9, mpeg4, mjpeg and flv. 10-bit h264 differs: the frames are the same,
but color is interpolated differently at edges (mean difference 3.1 of 255). decord finds no stream in AV1. In hevc
with open groups of pictures (x265's default), WMV and MPEG streams it returns other frames than requested without an
error. The comparison with PyAV's frames detects this, and the file is rejected.

Measured with torchcodec 0.17.0 on FFmpeg 5.1.9 and PyAV 18.1 (FFmpeg 8.1.2), all frames: bit-identical frames and
timestamps for 8-bit progressive h264 (of any chroma, range, matrix, rotation and size that was tried), hevc, vp8, vp9,
av1, mpeg4, msmpeg4v2, h263, flv, wmv1, theora and mjpeg, for 10-bit h264 of chroma 4:4:4 and for prores. Other
10-bit videos differ because of a color interpolation that no setting controls (mean difference 2.9 of 255 in a public
h264 clip; of a test pattern 3.3 to 3.9 in h264 and hevc, 0.9 to 1.0 in av1 and vp9). Interlaced h264 and mpeg4 also
differ (mean differences 5.1 and 4.7; decord's h264 differs too), and so do some wmv2 (by at most 2 of 255). In MPEG
program and transport streams torchcodec returns frames of other times or none, and with an edit list it counts a
different number of frames, so these files are rejected. Its decoding on a GPU is not offered, because the child's
sandbox gives no access to a GPU.

This module does not protect the process from a decoder that crashes or hangs; `video.pool.Decoder` does.
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
from PIL import Image, ImageOps

from ctvr.orchestrator.digests import ROOT, digest_sources, list_imported_sources
from ctvr.orchestrator.errors import ConfigError, IndexDisagrees, VideoError
from ctvr.orchestrator.video.container import keep_the_rest
from ctvr.orchestrator.video.decoders import READERS, brightness, check_same, read_pyav, torchcodec_version
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
)

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg"}


def decode(
    path: str | Path,
    sampling: Sampling,
    segment: tuple[float, float] | None = None,
    decoder: str = "pyav",
    limits: Limits | None = None,
) -> Frames:
    """Decode one clip in this process.

    Args:
        path: a video file, or a folder of .png/.jpg frames, ordered by the numbers in their names. A folder contains
            frames of one segment, so `segment` does not apply to it.
        sampling: T = `num_frames` and the side of the square frames in pixels.
        segment: (start, end) in seconds since the first frame; an end after the video's end is clipped to it.
        decoder: "pyav", "decord", "torchcodec" or "auto" (decord, then PyAV if decord fails).

    Raises:
        VideoError: if the file is missing, empty, damaged, not a video, or exceeds a limit.
        ConfigError: if `decoder` is unknown or not installed.
    """
    order, limits, path = _decoders(decoder), limits or Limits(), Path(path)
    watch = Watch(path, limits)
    if path.is_dir():
        return _decode_folder(path, sampling, limits, watch)
    return _decode_with_index(
        path, limits, watch, lambda index: _decode_film(index, path, sampling, segment, order, limits, watch)
    )


def _decode_with_index(path: Path, limits: Limits, watch: Watch, use: Callable[[Index], Result]) -> Result:
    """Decode with the packet index; if the decoder returns other frames, decode again with an index of all frames."""
    index = read_index(path, limits, watch)
    try:
        return use(index)
    except IndexDisagrees as error:
        why = f"its frames differ from its packets (at {error.args[0]:.2f} s)"
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
            if limits.strict and name != "pyav":  # other decoders conceal damage or wrong start frames
                seen = read_pyav(path, index, wanted, limits, watch)
                known = {i: brightness(sampling.fit(image)) for i, image in seen}
            small = {}
            for i, image in READERS[name](path, index, wanted, limits, watch):
                small[i] = sampling.fit(image)
                if i in known:
                    check_same(path, name, float(index.times[i]), small[i], known[i])
            times = np.where(chosen == MISSING, np.nan, index.times[chosen])
            return Frames(_stack_frames(small, chosen, sampling.size), times, name, _info(index, image))
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
    """Return the versions of everything that determines the pixels besides file and sampling, for store keys.

    `rule` is a digest of this file and its imports from this package. `strict` is the value in `Limits`.

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
        raise ConfigError(f"{name!r} is unknown", "decoder", remedy=f"Use {', '.join(READERS)} or auto.")
    if name != "pyav" and importlib.util.find_spec(name) is None:
        more = " and FFmpeg's shared libraries (Debian: apt-get install ffmpeg)" if name == "torchcodec" else ""
        raise ConfigError(f"decoder: {name!r} is not installed on this machine. Install {name}{more}, or use pyav.")
    return (name,)


# -- folders of frames


def _decode_folder(folder: Path, sampling: Sampling, limits: Limits, watch: Watch) -> Frames:
    files = _frame_files(folder)
    # The images count as one frame per second
    chosen = choose_frames(np.arange(len(files), dtype=np.float64), sampling.num_frames, rule=sampling.rule)
    small: dict[int, np.ndarray] = {}
    for i in sorted({*chosen.tolist()} - {MISSING}):
        watch.check()
        small[i] = sampling.fit(_open_image(folder, files[i], limits))
    return Frames(_stack_frames(small, chosen, sampling.size), np.full(sampling.num_frames, np.nan), "images")


def _stack_frames(small: dict[int, np.ndarray], chosen: np.ndarray, size: int) -> np.ndarray:
    """Stack the chosen frames: (T, size, size, 3); with NATIVE, height and width are those of the first frame."""
    if size == NATIVE:
        height, width = small[min(small)].shape[:2]
        images = {i: Image.fromarray(image).resize((width, height)) for i, image in small.items()}  # sizes may differ
        small = {i: np.asarray(image) for i, image in images.items()}
    return np.stack([missing_frame(size) if i == MISSING else small[i] for i in chosen.tolist()])


def _frame_files(folder: Path) -> list[Path]:
    """Return a folder's images, sorted by the numbers in their names (`frame_2_idx_0040` before `frame_10_...`)."""
    files = [p for p in folder.iterdir() if p.suffix.lower() in _IMAGE_SUFFIXES and not p.name.startswith(".")]
    if not files:
        raise VideoError(str(folder), "the folder contains no frames (.png, .jpg)")
    return sorted(files, key=lambda p: ([int(n) for n in re.findall(r"\d{1,18}", p.stem)], p.name))


def _open_image(folder: Path, file: Path, limits: Limits) -> np.ndarray:
    try:
        with Image.open(file, formats=["PNG", "JPEG"]) as image:
            check_size(folder, image.width, image.height, limits)
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16-bit gray, which Pillow would clip to 8 bits
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            return np.asarray(upright.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise VideoError(
            str(folder), f"{file.name} is damaged or not a PNG or JPEG image ({type(error).__name__})"
        ) from None
