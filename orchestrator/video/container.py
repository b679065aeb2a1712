"""Recognition of video containers and of truncated files from their bytes, before any decoder reads them.

Only the containers and raw streams listed below are passed to a decoder. Playlists and scripts (HLS, DASH, concat,
SDP), which can make a decoder read other files or the network, begin with text and are therefore never opened.
The outer boxes of MP4, Matroska and AVI declare the file's length, so a partial download is found without decoding.
"""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path
from typing import BinaryIO

CONTAINERS = "MP4, MOV, 3GP, Matroska, WebM, AVI, FLV, WMV, Ogg, MPEG, TS, M2TS, GIF, raw H.264, HEVC, MPEG and DV"
CUT = "the file is truncated: it ends inside a packet"
_PLAIN, _AVCHD, _DVB = 188, 192, 204  # packet sizes of transport streams in bytes; AVCHD packets begin with a time
_PROBED = 5 * _DVB
# First bytes of formats that FFmpeg reads and this package does not, to name them in a message
_OTHERS = (
    (b"\x89PNG", "a PNG"),
    (b"\xff\xd8\xff", "a JPEG or a stream of them"),
    (b"YUV4MPEG2", "raw YUV4MPEG video"),
    (b"DKIF", "an IVF stream"),
    (b".RMF", "a RealMedia file"),
    (b"\x06\x0e\x2b\x34\x02\x05\x01\x01", "an MXF file"),
    (b"FWS", "a Flash file"),
    (b"CWS", "a Flash file"),
)
_SOUNDS = (b"ID3", b"fLaC", b"\xff\xfb", b"\xff\xf3", b"\xff\xf1", b"\xff\xf9")  # MP3, FLAC, AAC
_GIFS = (b"GIF87a", b"GIF89a")
_PICTURES = frozenset((b"avif", b"heic", b"heix", b"mif1", b"heim", b"heis"))  # brands of HEIF (ISO 23008-12)
_MP4_BOXES = frozenset(
    (
        *(b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"sidx", b"moof", b"uuid", b"udta"),
        *(b"jP  ", b"emsg", b"prft", b"junk"),
    )
)
_OF_FRAGMENTS = frozenset((b"moov", b"moof", b"mdat", b"styp", b"sidx", b"emsg", b"prft"))
_UNKNOWN_RIFF = (0, 0xFFFFFFFF)  # placeholders that FFmpeg and other programs write first
_RIFF = "the RIFF chunk"
_HEADER = re.compile(rb"\0\0\x01[\xba-\xbf\xe0-\xef]")  # header of a pack, of the system or of a video packet
_BLOCK, _PADDED = 1 << 16, 16  # bytes per read; maximum blocks of zeros before a recording
_MAX_BOXES = 100_000  # fragmented files have two boxes per second


def container_of(path: Path) -> str | None:
    """Return FFmpeg's name of the demuxer for this file, or None if it is not a container of the allow-list."""
    with path.open("rb") as file:
        head = file.read(_PROBED)
        if not head[:8].strip(b"\0"):  # recordings of TV receivers can begin with padding
            file.seek(0)
            head = _skip_zeros(file)
    if head[4:8] in _MP4_BOXES:
        return "mov"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return "avi"
    if head.startswith(b"FLV\x01"):
        return "flv"
    if head.startswith(bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")):
        return "asf"
    if head.startswith(b"OggS"):
        return "ogg"
    if head.startswith(_GIFS):
        return "gif"
    if head.startswith(b"RIFF") and head[8:12] == b"CDXA":  # a file copied from a Video CD
        return "mpeg"
    if head.startswith(b"\x00\x00\x01\xba"):
        return "mpeg"
    return "mpegts" if _packet_size(head) else _raw_stream(head) or _program(path)


def _program(path: Path) -> str | None:
    """Return the demuxer of a program stream whose start is missing or is preceded by other bytes, otherwise None.

    Such a stream has headers one after the other (ISO 11172-1, 2.4.3; ISO 13818-1, 2.5.3).
    """
    with path.open("rb") as file:
        block = file.read(_BLOCK)
    for found in _HEADER.finditer(block, 0, len(block) - 14):
        at = found.start()
        length = 6 + int.from_bytes(block[at + 4 : at + 6], "big")
        if block[at + 3] == 0xBA:
            length = 12 if block[at + 4] >> 4 == 2 else 14 + (block[at + 13] & 7)
        if _HEADER.match(block, at + length):
            return "mpeg"
    return None


def _skip_zeros(file: BinaryIO) -> bytes:
    """Skip the zeros at the start of a file, except the two zeros of a start code; return the following block."""
    for _ in range(_PADDED):
        if (block := file.read(_BLOCK)).strip(b"\0"):
            return b"\0\0" + block.lstrip(b"\0") + file.read(_BLOCK)
    return b""


def _raw_stream(head: bytes) -> str | None:
    """Return the demuxer of a raw stream, recognized by its first start code, or None.

    Sources: ITU-T H.264 table 7-1, H.265 table 7-1, ISO 13818-2 table 6-1, ISO 14496-2 table 6-3, IEC 61834-2.
    """
    if head.startswith(b"\x1f\x07\0"):
        return "dv"
    zeros, _, unit = head[:8].partition(b"\1")
    if len(zeros) not in (2, 3) or zeros.strip(b"\0") or len(unit) < 2:
        return None
    first, second = unit[0], unit[1]
    if first == 0xB3:
        return "mpegvideo"
    if first == 0xB0 or (first <= 0x1F and unit[1:4] == b"\0\0\1"):  # a sequence, or a video object, which is empty
        return "m4v"
    if first in (0x40, 0x42, 0x46, 0x4E) and second == 1:  # parameter sets, delimiter or message of the base layer
        return "hevc"
    return "h264" if first & 0x9F in (6, 7, 9) else None  # message, sequence parameters or delimiter


def _packet_size(head: bytes) -> int:
    """Return the size of packets of a transport stream, even if the file begins inside a packet; 0 for other files."""
    for size in (_PLAIN, _AVCHD, _DVB):
        for first in range(size):
            marks = head[first::size]
            if len(marks) >= (3 if first in (0, 4) else 4) and set(marks) == {0x47}:
                return size
    return 0


def ends_in_packet(path: Path, container: str) -> bool:
    """Report whether a transport stream ends inside a packet, like an interrupted download."""
    if container != "mpegts":
        return False
    with path.open("rb") as file:
        size = _packet_size(file.read(_PROBED))
        file.seek(max(0, path.stat().st_size - 2 * size))
        return bool(size) and set(file.read()[4 if size == _AVCHD else 0 :: size]) != {0x47}


def refusal(path: Path) -> str:
    """Describe a file that is not in a known container, with the remedy."""
    with path.open("rb") as file:
        head = file.read(_BLOCK)
    if not head.strip(b"\0"):
        return "contains only zeros at its start, like an unfinished download. Download it again"
    if head.startswith(b"#EXTM3U"):
        name = shlex.quote(f"{path.stem}.m3u8")  # FFmpeg requires this extension
        return f"is a playlist (HLS). Rename it {name} and join its segments: `ffmpeg -i {name} -c copy OUT.mp4`"
    is_riff = head.startswith(b"RIFF")
    if head.startswith(_SOUNDS) or (is_riff and head[8:12] == b"WAVE"):
        return "is a sound file without video. Download the video"
    if is_riff and head[8:12] == b"WEBP":  # most builds of FFmpeg cannot read animated WebP
        return f"is a WebP, which is not supported. Convert it: `magick {shlex.quote(path.name)} -coalesce OUT.gif`"
    kind = next((name for start, name in _OTHERS if head.startswith(start)), None)
    if kind:
        return f"is {kind}, which is not supported. Convert it: {convert(path)}"
    return f"is not a video file of a known container ({CONTAINERS}). Convert it, if FFmpeg reads it: {convert(path)}"


def convert(path: Path) -> str:
    """Return the command that converts an unsupported file to a video."""
    return f"`ffmpeg -i {shlex.quote(path.name)} -c:v libx264 OUT.mp4`"


def keep_the_rest(path: Path) -> str:
    """Return the remedy for a damaged video: how to recover the intact part."""
    return f"{convert(path)} keeps the part that can be decoded"


def what_is_missing(path: Path, container: str) -> str | None:
    """Return why the file is incomplete (one line), None if its outer structure is complete or declares no length."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if container == "mov":
            return _mp4(file, size)
        if container == "matroska":
            return _matroska(file, size)
        if container == "avi":
            length = struct.unpack("<I", file.read(8)[4:8])[0]
            is_known = length not in _UNKNOWN_RIFF  # a recording that was piped or not finished has a placeholder
            return _cut(_RIFF, length + 8, size) if is_known and length + 8 > size else None
        return _gif(path, file) if container == "gif" else None


def is_of_media_alone(missing: str) -> bool:
    """Report whether only the media data is incomplete, in which case all frames may still be present."""
    return missing.startswith(tuple(_cut(what, 0, 0).split(" 0,")[0] for what in ("box 'mdat'", _RIFF)))


def _cut(what: str, end: int, size: int) -> str:
    return f"is truncated: {what} ends at byte {end}, but the file has {size} bytes"


def _mp4(file: BinaryIO, size: int) -> str | None:
    """Walk the top-level boxes: each must end inside the file, and one of them must be the index (`moov`)."""
    position, seen = 0, set[bytes]()
    file.seek(8)
    is_picture = file.read(4) in _PICTURES
    for _ in range(_MAX_BOXES):
        if size - position < 8:
            break
        file.seek(position)
        head = file.read(16)
        length, name = struct.unpack(">I4s", head[:8])
        if length == 1 and len(head) == 16:
            length = struct.unpack(">Q", head[8:])[0]
        elif length == 0:  # 0 means "to the end of the file"
            length = size - position
        if not name.isascii() or not name.replace(b" ", b"_").replace(b"-", b"_").replace(b"_", b"a").isalnum():
            if b"moov" in seen and b"mdat" in seen:  # bytes after a complete video are harmless
                break
            return f"is damaged: no MP4 box at byte {position}"
        if length < 8:
            return f"is damaged: MP4 box at byte {position} claims {length} bytes"
        if position + length > size:
            if {b"moov", b"mdat"} <= seen and name not in _OF_FRAGMENTS:
                break
            return _cut(f"box {name.decode('ascii')!r}", position + length, size)
        seen.add(name)
        position += length
    if b"moov" in seen:
        return None
    if b"moof" in seen:
        return "is a segment of a stream without its first part (`moov` box). Join them: cat INIT SEGMENT > OUT.mp4"
    if is_picture:
        return "is an image (AVIF or HEIC), which is not supported. Put the frames of a video into a folder, as .png"
    return "is truncated: it has no index (`moov` box), like an unfinished download"


def _matroska(file: BinaryIO, size: int) -> str | None:
    """Compare the declared length of the Segment element with the file; streams of unknown length pass."""
    position = 0
    for _ in range(16):
        file.seek(position)
        head = file.read(12)
        if len(head) < 12 or not head[4]:
            return None
        width = 9 - head[4].bit_length()  # bytes of the variable-length size: 1 + leading zero bits
        if 4 + width > len(head):
            return None
        length = int.from_bytes(head[4 : 4 + width], "big") & ((1 << (7 * width)) - 1)
        unknown = length == (1 << (7 * width)) - 1
        end = position + 4 + width + length
        if head[:4] == b"\x18\x53\x80\x67":
            return _cut("the Segment element", end, size) if not unknown and end > size else None
        if unknown or end >= size:
            return _cut("its header", end, size) if not unknown and end > size else None
        position = end
    return None


def _gif(path: Path, file: BinaryIO) -> str | None:
    """Walk the blocks of a GIF up to its trailer (GIF89a specification, appendix B)."""

    def skip_table(flags: int) -> None:  # of colors
        file.seek(3 << (flags & 7) + 1 if flags & 0x80 else 0, 1)

    file.seek(10)
    skip_table((file.read(3) or b"\0")[0])
    while kind := file.read(1):
        if kind == b";":
            return None
        if kind == b",":
            skip_table((file.read(9) or b"\0")[-1])
        elif kind != b"!":
            return f"is damaged: no block of a GIF at byte {file.tell() - 1}. {keep_the_rest(path)}"
        file.seek(1, 1)  # the label of an extension, or the size of an image's codes
        while length := (file.read(1) or b"\0")[0]:
            file.seek(length, 1)
    return f"is truncated: it has no trailer. {keep_the_rest(path)}"
