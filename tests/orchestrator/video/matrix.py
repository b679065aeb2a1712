"""Small videos of every container, codec and trait, whose frames show their own numbers.

Videos that this FFmpeg cannot make are omitted. `make video-formats` writes docs/video-formats.md.
"""

import itertools
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.decode import decode
from ctvr.orchestrator.video.sampling import NATIVE, Sampling

os.environ.setdefault("SVT_LOG", "1")  # errors alone
PAGE = Path(__file__).resolve().parents[3] / "docs/video-formats.md"

COUNT, RATE, WIDTH, HEIGHT = 30, 25, 128, 96  # multiples of 32: at others this x265 writes beyond its memory
BLOCK = 32  # pixels of a side of a black or white block: lossy codecs keep them

# Name of a file's ending: FFmpeg's muxer
CONTAINERS = {
    "mp4": "mp4",
    "mov": "mov",
    "3gp": "3gp",
    "mkv": "matroska",
    "webm": "webm",
    "avi": "avi",
    "flv": "flv",
    "ts": "mpegts",
    "mpg": "mpeg",
    "wmv": "asf",
    "gif": "gif",
}

_X264 = {"preset": "ultrafast", "qp": "20"}
_X265 = "log-level=none:pools=none:frame-threads=1:keyint=12:min-keyint=12:scenecut=0:bframes=3:b-adapt=0"
_B = "keyint=12:min-keyint=12:scenecut=0:bframes=3:b-adapt=0"
_MPEG = {"g": "12", "qmin": "2", "qmax": "3"}
_VPX = {"g": "12", "deadline": "good", "cpu-used": "5", "lag-in-frames": "9", "auto-alt-ref": "1", "b": "500k"}

# Name in the table: FFmpeg's encoder and its options
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {**_X264, "x264-params": "keyint=12:min-keyint=12:scenecut=0:bframes=0"}),
    "h264, B-frames": ("libx264", {**_X264, "x264-params": _B}),
    "h264, open GOP": ("libx264", {**_X264, "x264-params": f"{_B}:open-gop=1"}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": f"{_X265}:open-gop=0"}),
    "hevc, open GOP": ("libx265", {"preset": "ultrafast", "x265-params": f"{_X265}:open-gop=1"}),
    "mpeg4": ("mpeg4", _MPEG),
    "mpeg4, B-frames": ("mpeg4", {**_MPEG, "bf": "2"}),
    "mpeg2": ("mpeg2video", {**_MPEG, "bf": "2"}),
    "mpeg1": ("mpeg1video", {**_MPEG, "bf": "2"}),
    "wmv2": ("wmv2", _MPEG),
    "vp8": ("libvpx", _VPX),
    "vp9": ("libvpx-vp9", _VPX),
    "av1": ("libsvtav1", {"g": "12", "preset": "8", "crf": "10", "svtav1-params": "lp=1:enable-tf=0"}),
    "mjpeg": ("mjpeg", {"qmin": "2", "qmax": "3"}),
    "gif": ("gif", {}),
}

# Name in the table: what the video is
TRAITS = {
    "plain": "30 frames at 25 frames per second, 128x96 pixels",
    "trimmed": "cut at second 0.64 by copying packets, so the first frame is the key frame of second 0.48",
    "offset": "the time of the first frame is 3 s",
    "variable": "frame times with gaps of three frames",
    "rotated": "a display matrix that rotates by 90 degrees (for H.264 outside MP4, a message in the stream)",
    "odd": "127x95 pixels",
    "one": "a single frame",
    "piped": "written to a pipe, so that the file has no duration and no index (MP4 as fragments)",
    "10 bit": "10 bits per color",
    "interlaced": "each frame is coded as two fields",
    "full": "the full range of color values",
    "copied": "copied from a container without presentation times, so packets have their decoding times",
    "cover": "a cover picture is an additional stream, and the first stream if the container permits it",
}
_FORMATS = {"mjpeg": "yuvj420p", "gif": "gray"}
_FIRST = 16  # frame with which a trimmed video begins


@dataclass(frozen=True)
class Cell:
    """A video of the table.

    verdict: "right", "no times" (frames right, times estimated), "wrong", "refused" or "not made". why: the reason in
    one line.
    """

    container: str
    codec: str
    trait: str
    verdict: str
    why: str = ""


def draw(number: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Draw the frame of a number: 3 rows of 4 blocks; of the corners only the top left one is white."""
    bits = [1, *(number >> i & 1 for i in range(2)), 0, *(number >> i & 1 for i in range(2, 6)), 0, *(0, 1), 0]
    image = np.kron(np.asarray(bits, np.uint8).reshape(3, 4) * 219 + 16, np.ones((BLOCK, BLOCK), np.uint8))
    return np.repeat(image[:height, :width, None], 3, axis=2)


def read(image: np.ndarray) -> int:
    """Return the number that an upright image shows; -1 if it is rotated, mirrored or not one of our frames."""
    blocks = np.asarray([[image[y : y + 6, x : x + 6].mean() for x in range(13, 127, 32)] for y in range(13, 95, 32)])
    bits = (blocks > 128).astype(int).ravel().tolist()
    if (bits[0], bits[3], bits[8:]) != (1, 0, [0, 0, 1, 0]):
        return -1
    return sum(bit << i for i, bit in enumerate(bits[1:3] + bits[4:8]))


# -- made


def times_of(trait: str) -> list[int]:
    """Return the times of frames, in 1/25 s."""
    if trait == "variable":
        return [i + 3 * (i // 4) for i in range(COUNT)]
    return list(range(1 if trait == "one" else COUNT))


def _format(encoder: str, trait: str) -> str:
    if trait == "10 bit":
        return "yuv420p10le"
    if encoder in _FORMATS:
        return _FORMATS[encoder]
    return "yuv444p" if trait == "odd" and encoder in ("libx264", "libx265") else "yuv420p"


def _options(encoder: str, options: dict[str, str], trait: str) -> dict[str, str]:
    if trait == "interlaced":
        if encoder == "libx264":
            return {**options, "x264-params": f"{options['x264-params']}:tff=1"}
        if encoder not in ("mpeg2video", "mpeg4"):
            raise ValueError(f"{encoder} does not code fields")
        return {**options, "flags": "+ildct+ilme"}
    if encoder == "libx264" and trait == "rotated":  # for the filter that adds a message to others
        return {**options, "x264-params": f"{options['x264-params']}:repeat-headers=1:pic-struct=1"}
    return options


class _Pipe:
    """A file that can only be written to, like a pipe."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes) -> int:
        self.content += data
        return len(data)


def make(path: Path, container: str, codec: str, trait: str) -> None:
    """Write a video of the table.

    Raises:
        av.FFmpegError, ValueError: if it cannot be made.
    """
    muxer, (encoder, options) = CONTAINERS[container], CODECS[codec]
    width, height = {"odd": (WIDTH - 1, HEIGHT - 1), "rotated": (HEIGHT, WIDTH)}.get(trait, (WIDTH, HEIGHT))
    if trait == "offset" and muxer == "avi":
        raise ValueError("AVI begins at second 0")
    is_mp4, pipe = muxer in ("mp4", "mov", "3gp"), _Pipe()
    target: Any = pipe if trait == "piped" else str(path)
    fragments = {"movflags": "frag_keyframe+empty_moov"} if trait == "piped" and is_mp4 else {}
    with av.open(target, "w", format=muxer, options=fragments) as file:
        covers = _cover(file) if trait == "cover" else []
        stream = file.add_stream(encoder, rate=RATE, options=_options(encoder, options, trait))
        stream.width, stream.height, stream.pix_fmt = width, height, _format(encoder, trait)
        if trait == "full":
            stream.codec_context.color_range = 2
        packets = _encode(stream, trait)
        if trait == "rotated" and not is_mp4:
            packets = _with_message(packets, stream, codec)
        for packet in [*covers, *_moved(packets, trait)]:
            file.mux(packet)
    if trait == "piped":
        path.write_bytes(pipe.content)
    if trait == "rotated" and is_mp4:
        _turn(path)


def _cover(file: Any) -> list[Any]:
    """Add a stream with a cover picture; return its packets."""
    stream = file.add_stream("mjpeg", rate=RATE)
    stream.width, stream.height, stream.pix_fmt = 320, 320, "yuvj420p"
    stream.disposition = Disposition.attached_pic
    frame = av.VideoFrame.from_ndarray(np.zeros((320, 320, 3), np.uint8), format="rgb24")
    frame.pts = 0
    return [*stream.encode(frame), *stream.encode()]


def _encode(stream: Any, trait: str) -> list[Any]:
    packets: list[Any] = []
    for number, time in enumerate(times_of(trait)):
        image = draw(number)
        image = np.rot90(image) if trait == "rotated" else image[: stream.height, : stream.width]
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        if trait == "full":
            frame = frame.reformat(format=stream.pix_fmt, dst_color_range=2)
        frame.pts = time
        packets += stream.encode(frame)
    return packets + stream.encode()


def _with_message(packets: list[Any], stream: Any, codec: str) -> list[Any]:
    """Add an H.264 message that rotates the picture by a quarter turn clockwise."""
    if not codec.startswith("h264"):
        raise ValueError("its frames have no display matrix")
    turned: list[Any] = []
    for packet in packets:
        if packet.is_keyframe:  # a filter adds the message to its first packet
            bitstream = av.BitStreamFilterContext("h264_metadata=display_orientation=insert:rotate=-90", stream)
        turned += bitstream.filter(packet)
    return turned


def _moved(packets: list[Any], trait: str) -> list[Any]:
    """Change the times of packets; of a trimmed video, omit those before the key frame that its start needs."""
    if trait == "copied":
        first = packets[0].dts
        for packet in packets:
            packet.pts = packet.dts = packet.dts - first
        return packets
    moved = {"trimmed": -_FIRST, "offset": 3 * RATE}.get(trait, 0)
    if trait == "trimmed":
        keys = [i for i, packet in enumerate(packets) if packet.is_keyframe and packet.pts <= _FIRST]
        packets = packets[keys[-1] :]
    for packet in packets:
        packet.pts, packet.dts = packet.pts + moved, packet.dts + moved
    return packets


def _turn(path: Path) -> None:
    """Write a display matrix of a quarter turn clockwise into the header of the track of an MP4."""
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 44
    content[place : place + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, HEIGHT << 16, 0, 1 << 30)
    path.write_bytes(content)


# -- judged


TIMED = ("mp4", "mov", "3gp", "mkv", "webm", "flv", "ts", "gif")  # containers that keep the time of each frame
LATE = 3 / RATE  # seconds, in the others
COUNTS = (1, 4, 12, 48)
SEGMENTS = ((5, 6, 1), (19, 27, 3))  # first frame, the one after the last, requested frames


def judge(folder: Path, container: str, codec: str, trait: str) -> Cell:
    """Make a video, decode it whole and compare it with what we read: frames, their times, and those of segments."""
    path = folder / f"{codec}-{trait}.{container}".replace(" ", "_")
    try:
        make(path, container, codec, trait)
        truth = shown(path, trait)
    except (av.FFmpegError, ValueError, AttributeError):
        return Cell(container, codec, trait, "not made")
    if not truth or -1 in truth:
        return Cell(container, codec, trait, "not made")
    try:
        faults = list(_faults(path, container, trait, truth))
    except VideoError as error:
        return Cell(container, codec, trait, "refused", error.reason)
    right = "no times" if _lacks_times(container, trait) else "right"
    return Cell(container, codec, trait, "wrong" if faults else right, "; ".join(faults))


def _lacks_times(container: str, trait: str) -> bool:
    """Return whether frames follow each other at distances that the file does not contain."""
    return container == "mpg" and trait in ("variable", "copied")


def _faults(path: Path, container: str, trait: str, truth: list[int]) -> Iterator[str]:
    """Yield a line for each request that returns wrong frames or times."""
    times = np.asarray(times_of(trait)) / RATE
    seconds = np.zeros(0)
    for count in COUNTS[::-1]:
        clip = decode(path, Sampling(count, NATIVE))
        wanted = [truth[i] for i in _middles(0, len(truth), count)]
        if (found := [read(image) for image in clip.frames]) != wanted:
            yield f"{count} frames: {found} for {wanted}"
        if count == COUNTS[-1]:
            seconds = clip.timestamps
            late = np.abs(seconds[: len(truth)] - (times[truth] - times[truth[0]])).max()
            if late > (0.5 / RATE if container in TIMED else LATE) and not _lacks_times(container, trait):
                yield f"times: off by {late:.2f} s, {seconds[: len(truth)].round(2).tolist()}"
    for first, stop, count in SEGMENTS:
        if stop >= len(truth):
            continue
        clip = decode(path, Sampling(count, NATIVE), (float(seconds[first]), float(seconds[stop])))
        wanted = [truth[i] for i in _middles(first, stop, count)]
        if (found := [read(image) for image in clip.frames]) != wanted:
            yield f"segment of frames {first} to {stop}: {found} for {wanted}"


def _middles(first: int, stop: int, count: int) -> list[int]:
    """Return the middle frame of each of `count` equal parts; if there are too few frames, the last one repeats."""
    parts = min(count, stop - first)
    edges = np.linspace(first, stop, parts + 1).astype(int)
    chosen = ((edges[:-1] + edges[1:] - 1) // 2).tolist()
    return chosen + chosen[-1:] * (count - parts)


def shown(path: Path, trait: str) -> list[int]:
    """Return the numbers that a whole decode shows, in its order.

    Raises:
        av.FFmpegError: if the whole decode fails.
    """
    with av.open(str(path)) as file:
        images = [frame.to_ndarray(format="rgb24") for frame in file.decode(file.streams.best("video"))]
    return [read(np.rot90(image, -1) if trait == "rotated" else image) for image in images]


# -- the page

SIGNS = {"right": "✓", "no times": "≈", "not made": "–", "refused": "refused", "wrong": "WRONG"}
INTRODUCTION = """\
# Supported video formats

ctvr reads the same frames of a video, in the same order, as a complete decode by FFmpeg. A test makes small videos of
every container, codec and trait of this table ({made} videos), in which each frame shows its own number. It reads 1, 4,
12 and 48 frames and two segments of each video, and compares their numbers and times with the expected ones.
`make video-formats` writes this page, and a test fails if the page is out of date.

This page was made with PyAV {pyav} (FFmpeg {ffmpeg}).

- ✓: the frames, their times and the segments are correct.
- ≈: the frames are correct. The file does not contain the time of each frame, so times and segments are estimates.
- –: FFmpeg cannot make this video ([list](#videos-that-cannot-be-made-here)).

A stream without a container (H.264, HEVC, MPEG-1, -2 and -4) does not store the times of frames, so ctvr computes them
from the frame rate. For a DV stream, ctvr uses the times that FFmpeg reports. In a GIF, a delay of 0 counts as 0.1 s,
as in browsers. Files with other containers or codecs, and damaged files, are refused with a message of one line. It
states the reason and a command that converts the file. WebP files and sound files with a cover picture are refused.
`ctvr streams frames FILE` reports how a file is read ([own-videos.md](own-videos.md#check-videos)).

"""


def every_cell(folder: Path) -> list[Cell]:
    """Make and judge all videos of the table."""
    return [judge(folder, *names) for names in itertools.product(CONTAINERS, CODECS, TRAITS)]


def page(cells: list[Cell]) -> str:
    """Return docs/video-formats.md."""
    verdicts = {(cell.container, cell.codec, cell.trait): cell for cell in cells}
    made = sum(cell.verdict != "not made" for cell in cells)
    lines = [f"| | {' | '.join(TRAITS)} |", "|---|" + "---|" * len(TRAITS)]
    refused: list[str] = []
    unwritten: list[str] = []
    for container in CONTAINERS:
        absent = []
        for codec in CODECS:
            row = [verdicts[container, codec, trait] for trait in TRAITS]
            if all(cell.verdict == "not made" for cell in row):
                absent.append(codec)
                continue
            lines.append(f"| {container}: {codec} | {' | '.join(SIGNS[cell.verdict] for cell in row)} |")
            refused += [
                f"- {container}: {codec}, {cell.trait}: {cell.why}" for cell in row if cell.verdict == "refused"
            ]
        if absent:
            unwritten.append(f"{container:6}{'; '.join(absent)}")
    traits = [f"- {name}: {meaning}." for name, meaning in TRAITS.items()]
    introduction = INTRODUCTION.format(made=made, pyav=av.__version__, ffmpeg=av.ffmpeg_version_info)
    parts = [introduction + "\n".join(lines), "## Traits", "\n".join(traits)]
    parts += ["## Refused videos", "\n".join(refused)] if refused else []
    parts += [
        "## Videos that cannot be made here",
        "With these codecs, FFmpeg cannot write a file in this container that it can read:",
    ]
    parts += [_listed(unwritten), "FFmpeg's encoders lack these traits:", _listed(_not_encoded(verdicts))]
    return "\n\n".join(parts) + "\n"


def _listed(lines: Iterable[str]) -> str:
    """Return a block of lists of names."""
    return "\n".join(["```text", *lines, "```"])


def _not_encoded(verdicts: dict[tuple[str, str, str], Cell]) -> Iterator[str]:
    """Yield a line for each trait that a codec lacks in a container that supports the codec."""
    for trait in TRAITS:
        lacking = []
        for codec in CODECS:
            plain = [each for each in CONTAINERS if verdicts[each, codec, "plain"].verdict != "not made"]
            without = [each for each in plain if verdicts[each, codec, trait].verdict == "not made"]
            if without:
                lacking.append(codec if without == plain else f"{codec} in {', '.join(without)}")
        if lacking:
            yield f"{trait:12}{'; '.join(lacking)}"


if __name__ == "__main__":
    av.logging.set_level(av.logging.PANIC)
    with tempfile.TemporaryDirectory() as place:
        PAGE.write_text(page(every_cell(Path(place))), encoding="utf-8")
