"""Extraction of a video's frames as training reads them, and a check of a folder's videos (`ctvr streams frames`).

Shapes: T frames of height H and width W.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ctvr.orchestrator.console import printable, say
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.processes import count_processors
from ctvr.orchestrator.video.container import CUT
from ctvr.orchestrator.video.endings import VIDEO_SUFFIXES, find_videos
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import NATIVE, Frames, Sampling

_CONTAINERS = {
    "mov": "MP4/MOV/3GP",
    "matroska": "Matroska/WebM",
    "avi": "AVI",
    "flv": "FLV",
    "asf": "WMV/ASF",
    "ogg": "Ogg",
    "mpeg": "MPEG-PS",
    "mpegts": "MPEG-TS",
    "h264": "raw H.264",
    "hevc": "raw HEVC",
    "mpegvideo": "raw MPEG",
    "m4v": "raw MPEG-4",
    "dv": "raw DV",
    "gif": "GIF",
}
_MOST = 10_000  # maximum number of frames; at native size they take gigabytes
_MOST_DRAWN = 400
_SIDE, _GAP, _LINE, _COLUMNS = (
    240,
    6,
    16,
    4,
)  # pixels of a drawn frame, between frames, of a line of text; number of columns


def frames(
    path: Path, num_frames: int = 12, start: float | None = None, end: float | None = None, out: Path | None = None
) -> str:
    """Decode `num_frames` frames of a video, or of each video of a folder, in child processes; return a report.

    Args:
        path: a video, or a folder that is searched recursively.
        num_frames: number of frames, sampled as in training at the middle of equal parts; if the video has fewer
            frames, the last frame repeats.
        start: start in seconds since the first frame; if None, the first frame.
        end: end in seconds since the first frame; if None, the end of the video.
        out: for one video, a .npz with `frames` (T, H, W, 3) uint8 at native size and `seconds` (T,), or a .png that
            shows the frames with their times.

    Raises:
        ConfigError: for a path that does not exist, an option out of range, or a file that cannot be written.
        VideoError: if the video cannot be read.
    """
    segment = _segment(start, end)
    if not 1 <= num_frames <= _MOST:
        raise ConfigError(f"must be 1 to {_MOST}, got {num_frames}", "--num-frames", remedy="Use 12.")
    if not path.exists():
        raise ConfigError("does not exist", printable(str(path)), remedy="Pass a video or a folder of videos.")
    if path.is_dir():
        if out is not None:
            raise ConfigError(f"--out: applies to one video, and {printable(str(path))} is a folder. Omit it.")
        return _folder(path, Sampling(num_frames), segment)
    write = _writer(out, num_frames)
    with Decoder(1) as decoder:
        try:
            sampling = Sampling(num_frames) if out is None else Sampling(num_frames, NATIVE)  # native size for a file
            clip = decoder.decode(path, sampling, segment)
        except VideoError as error:
            another = "Use another --start" if error.reason.startswith("segment starts") else "Use another video"
            if out is not None and "more memory" in error.reason and num_frames > 1:
                another = "Use a smaller --num-frames"
            remedy = "" if ". " in error.reason else f". {another}."
            raise VideoError(printable(error.path), printable(error.reason) + remedy) from None
    line = f"{printable(str(path))}: {_facts(clip)}"
    if out is not None:
        _write_whole(out, write(clip, f"{printable(path.name)}: {_facts(clip)}"))
        say(f"written: {printable(str(out))}")
    return line


def _segment(start: float | None, end: float | None) -> tuple[float, float] | None:
    """Check --start and --end; return the segment in seconds, whose end is infinite in effect without --end."""
    for option, value in (("--start", start), ("--end", end)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"seconds since the first frame must be >= 0, got {value:g}.", option)
    if start is None and end is None:
        return None
    first, last = start or 0.0, sys.float_info.max if end is None else end
    if last <= first:
        raise ConfigError(f"must be greater than --start ({first:g}), got {last:g}.", "--end")
    return first, last


def _facts(clip: Frames) -> str:
    """Format container, codec, size, frames, rate, duration and decoder of a video in one line."""
    info = clip.info
    assert info is not None  # always set for a file
    said = [
        f"{_CONTAINERS[info.container]}, {info.codec}, {info.width}x{info.height}",
        f"{info.frames} {'frame' if info.frames == 1 else 'frames'}, {info.fps:.6g} frames/s, {info.seconds:.2f} s",
        f"decoder {clip.decoder}",
    ]
    if info.counted:
        said.append(f"decoded completely, since {info.counted}")
    different = len(np.unique(clip.timestamps))
    if different < len(clip.timestamps):
        said.append(f"{different} of {len(clip.timestamps)} frames are distinct, the last repeats")
    return "; ".join(said)


def _folder(folder: Path, sampling: Sampling, segment: tuple[float, float] | None) -> str:
    """Decode the videos of a folder; return the number of readable videos and a line for each other video."""
    found = find_videos(folder)
    if not found.videos and found.unreadable:
        raise found.unreadable[0]
    if not found.videos:
        raise ConfigError(
            f"contains no video: none of its {found.others} files ends in {' '.join(VIDEO_SUFFIXES)}.",
            printable(str(folder)),
        )
    refused: dict[Path, str] = {}
    cut: list[Path] = []
    with Decoder(min(4, count_processors())) as decoder:
        for job, result in decoder.map(Job(str(video), sampling, segment) for video in found.videos):
            if isinstance(result, VideoError):
                refused[Path(job.path)] = result.reason
            elif result.info is not None and CUT in result.info.counted:
                cut.append(Path(job.path))
    count = len(found.videos)
    head = f"{printable(str(folder))}: {count - len(refused)} of {count} videos can be read"
    lines = [f"{printable(str(video))}: {printable(refused[video])}" for video in sorted(refused)]
    lines += [f"{printable(str(video))}: can be read; {CUT}" for video in sorted(cut)]
    lines += [f"{printable(str(error.filename))}: cannot be listed ({error.strerror})" for error in found.unreadable]
    if found.others:
        head += f"; {found.others} other {'file does' if found.others == 1 else 'files do'} not have a video's suffix"
    return "\n".join([head, *lines])


# -- output files


def _writer(out: Path | None, num_frames: int) -> Callable[[Frames, str], bytes]:
    """Check --out before the slow work; return the function that encodes the file."""
    if out is None or out.suffix.lower() == ".npz":
        write = _arrays
    elif out.suffix.lower() == ".png":
        write = _sheet
        if num_frames > _MOST_DRAWN:
            raise ConfigError(
                f"must be at most {_MOST_DRAWN} for a .png, got {num_frames}", "--num-frames", remedy="Use a .npz."
            )
    else:
        raise ConfigError(f"must end in .npz or .png, got {printable(str(out))}", "--out", remedy="Use frames.npz.")
    if out is not None and out.is_dir():
        raise ConfigError(f"{printable(str(out))} is a folder", "--out", remedy="Use a file.")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(
            f"--out: the folder {printable(str(out.parent))} does not exist. Create it, or use another folder."
        )
    return write


def _write_whole(out: Path, content: bytes) -> None:
    """Write a file atomically."""
    try:
        publish(out, content)
    except OSError as error:
        raise ConfigError(f"{printable(str(out))} cannot be written ({error.strerror}).", "--out") from error


def _arrays(clip: Frames, title: str) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, frames=clip.frames, seconds=clip.timestamps)
    return buffer.getvalue()


def _sheet(clip: Frames, title: str) -> bytes:
    """Draw frames in rows, each with its time below it."""
    pictures = [Image.fromarray(frame) for frame in clip.frames]
    for picture in pictures:
        picture.thumbnail((_SIDE, _SIDE))
    width, height = pictures[0].width + _GAP, pictures[0].height + _GAP + _LINE
    columns = min(len(pictures), max(_COLUMNS, math.isqrt(len(pictures))))
    rows = -(-len(pictures) // columns)
    font = ImageFont.load_default()
    widest = max(_GAP + columns * width, 2 * _GAP + round(font.getlength(title)))
    whole = Image.new("RGB", (widest, _GAP + _LINE + rows * height), "white")
    pen = ImageDraw.Draw(whole)
    pen.text((_GAP, 2), title, fill="black", font=font)
    for number, (picture, second) in enumerate(zip(pictures, clip.timestamps)):
        left, top = _GAP + number % columns * width, _GAP + _LINE + number // columns * height
        whole.paste(picture, (left, top))
        pen.text((left, top + picture.height + 1), f"{second:.2f} s", fill="black", font=font)
    buffer = io.BytesIO()
    whole.save(buffer, "PNG")
    return buffer.getvalue()
