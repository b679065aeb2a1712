"""Packets of a video: timestamps, key frames, and whether they prove which frames a full decode shows.

Packets serve as an index if each shows exactly one frame, at its own time. That holds for containers that store
presentation times (MP4, Matroska, FLV, GIF) and codecs with one frame per packet. Packets of VP8, VP9 and MPEG-4, which
may show no frame or two, are parsed. AVI has no presentation times and writes empty packets for repeated frames.
Packets of MPEG and TS come from a parser and may be single fields. WMV and Ogg omit some times. FFmpeg's decoder of
GIF returns frames that an edit list hides. Such videos are counted by decoding them (counting.py).

A program that copies packets may write decoding times (DTS) as presentation times (PTS), as FFmpeg does from AVI to
MP4. They are then in the order of the packets, although the codec has B-frames, and a seek would return another frame.
If the codec has B-frames, or times are out of order, we seek only to a key frame whose group has reordered times.
Elsewhere in such a video we decode every frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.container import keep_the_rest

_TIMED = frozenset(("mov", "matroska", "flv", "gif"))
_FRAME_A_PACKET = frozenset(
    (
        *("h264", "hevc", "av1", "libdav1d", "libaom-av1", "mjpeg", "prores", "dnxhd", "cfhd", "dvvideo", "flv"),
        *("vp8", "libvpx", "vp9", "libvpx-vp9", "mpeg4", "ffv1", "huffyuv", "ffvhuff", "rawvideo"),
    )
)
_SMALLEST_PICTURE = 24  # bytes of MPEG-4: an uncoded picture, which repeats the previous one, has fewer
# Where recordings are joined (segments of HLS), the demuxer marks the last packet of one, or the one before it, as
# corrupt, because counters are interrupted. If a key frame follows, no later frame refers to the missing data
_AT_A_JOIN = 1
_PROGRESSIVE = (0, 1)  # FFmpeg's field orders "unknown" and "progressive"


@dataclass(frozen=True)
class Packets:
    """Presentation timestamps of the shown frames, ascending, in units of the stream.

    `why` is the reason why the packets cannot serve as an index, or "". `count` is the number of non-empty packets,
    including those that an edit list hides.
    """

    pts: np.ndarray  # (N,) int64
    keys: np.ndarray  # (K,) int64, of the shown key frames to which a decoder may seek
    count: int
    why: str


class Reader:
    """Collector of the packets of one video, in order."""

    def __init__(self, path: Path, container: str, context: Any) -> None:
        self.path, self.container, self.codec = path, container, context.name
        self.has_b_frames = bool(context.has_b_frames)
        self.packets: list[tuple[int, bool, bool]] = []  # pts, whether it is a key frame, whether it is shown
        self.first_key: int | None = None
        self.count = 0
        self.broken = 0  # number of a packet marked as corrupt; 0 once it is known to be intact
        self.why = ""
        if container not in _TIMED:
            self.why = "its container does not store presentation times"
        elif self.codec not in _FRAME_A_PACKET:
            self.why = f"packets of {self.codec} need not be frames"
        elif self.codec == "h264" and int(getattr(context, "field_order", 0) or 0) not in _PROGRESSIVE:
            self.why = "its fields may be packets"

    def add(self, packet: Any, strict: bool) -> None:
        """Record a non-empty packet.

        Raises:
            VideoError: if `strict` and a packet from the first key frame on is marked as corrupt. In MPEG-TS it is
                raised only if none of the next two packets is an intact key frame.
        """
        self.count += 1
        if self.first_key is None and packet.is_keyframe and packet.pts is not None:
            self.first_key = packet.pts
        if packet.is_keyframe and not packet.is_corrupt:
            self.broken = 0
        elif packet.is_corrupt and strict and self.first_key is not None:
            self.broken = self.broken or self.count
        if self.broken and (self.container != "mpegts" or self.count - self.broken > _AT_A_JOIN):
            raise self._corrupt()
        if self.why:
            return
        if self.count == 1 and not packet.is_keyframe:
            self.why = "it does not begin with a key frame"
        elif packet.pts is None:
            self.why = "its packets lack times"
        elif not shows_one(self.codec, packet):
            self.why = "its packets do not show one frame each"
        else:  # an edit list hides the discarded ones
            self.packets.append((packet.pts, packet.is_keyframe, not packet.is_discard))

    def result(self) -> Packets:
        """Return the collected packets.

        Raises:
            VideoError: if the last packet is corrupt.
        """
        if self.broken:
            raise self._corrupt()
        times, is_key, is_shown = np.asarray(self.packets, dtype=np.int64).reshape(-1, 3).T
        run = np.cumsum(is_key)
        is_late = times < np.maximum.accumulate(times)
        if self.has_b_frames or is_late.any():
            is_key &= np.isin(run, run[is_late])
        pts, why = np.unique(times[is_shown == 1]), self.why
        if not why and len(pts) < is_shown.sum():
            why = "its packets share times"
        elif not why and len(pts) and self.first_key is not None and pts[0] < self.first_key:
            why = "frames before its first key frame are missing"
        return Packets(pts, np.unique(times[is_key & is_shown == 1]), self.count, why)

    def _corrupt(self) -> VideoError:
        text = f"is damaged: packet {self.broken} is corrupt. {keep_the_rest(self.path)}"
        return VideoError(str(self.path), text)


def shows_one(codec: str, packet: Any) -> bool:
    """Report whether a packet shows exactly one frame, judging by its first bytes."""
    if codec in ("vp8", "libvpx"):
        return bool(memoryview(packet)[0] >> 4 & 1)
    if codec in ("vp9", "libvpx-vp9"):
        return _shown_of_vp9(memoryview(packet)) == 1
    if codec == "mpeg4":
        return packet.size >= _SMALLEST_PICTURE and bytes(packet).count(b"\0\0\1\xb6") == 1
    return True


def _shown_of_vp9(data: memoryview) -> int:
    """Count the shown frames of a VP9 packet; a superframe ends with its frames' sizes (VP9 specification, annex B)."""
    starts, last = [0], data[-1]
    if last & 0xE0 == 0xC0:
        width, frames = (last >> 3 & 3) + 1, (last & 7) + 1
        length = 2 + width * frames
        if len(data) > length and data[-length] == last:
            sizes = [int.from_bytes(data[-length + 1 + width * i :][:width], "little") for i in range(frames - 1)]
            for size in sizes:
                starts.append(starts[-1] + size)
    return sum(start < len(data) and _is_shown_vp9(data[start]) for start in starts)


def _is_shown_vp9(byte: int) -> bool:
    """Report whether a VP9 frame is shown. Bits: marker 2, profile 2 (or 3), show-existing 1, type 1, show 1."""
    below = 2 if byte >> 4 & 3 == 3 else 3
    return bool(byte >> below & 1 or byte >> (below - 2) & 1)
