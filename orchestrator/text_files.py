"""Readers of users' text files, which must be regular and of bounded size.

A FIFO or device neither blocks nor fills the memory. UTF-8 is read with and without a byte order mark, UTF-16 with one.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
import stat
from pathlib import Path
from typing import BinaryIO

from ctvr.orchestrator.errors import ConfigError

MIB = 1 << 20
MOST = 1024 * MIB  # a manifest of a million videos has about 300 MB
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# First bytes of files that are often given by mistake -> the fault and the remedy
_STARTS = {
    b"version https://git-lfs": "is a pointer of Git LFS. Fetch the file itself: git lfs pull",
    b"<!doctype": "is a web page, probably from a failed download. Fetch the file again",
    b"<html": "is a web page, probably from a failed download. Fetch the file again",
    b"<?xml": "is XML, probably an error message from a server. Fetch the file again",
    b"pk\x03\x04": "is a zip archive or a spreadsheet (.xlsx). Unpack it, or export a sheet as .csv",
    b"\xd0\xcf\x11\xe0": "is an Office document (.xls). Export it as .csv",
    b"\x1f\x8b": "is compressed (gzip). Unpack it",
    b"bzh": "is compressed (bzip2). Unpack it",
    b"\xfd7zxz": "is compressed (xz). Unpack it",
    b"(\xb5/\xfd": "is compressed (zstd). Unpack it",
    b"7z\xbc\xaf": "is an archive (7z). Unpack it",
    b"rar!": "is an archive (RAR). Unpack it",
    b"par1": "is a parquet file. Export it as text",
    b"\x89hdf": "is an HDF5 file. Export it as text",
    b"\x93numpy": "is a numpy array. Export it as text",
}
_BREAK = re.compile(r"\r\n|\n|\r")  # `str.splitlines` also splits at U+2028, U+0085, VT and FF, which occur in captions


def other_file(head: bytes) -> str | None:
    """Identify an unexpected file by its first bytes: return its kind and the remedy, or None if unknown."""
    start = head.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    return next((what for known, what in _STARTS.items() if start.startswith(known)), None)


def first_bytes(path: Path) -> bytes:
    """Return the first 64 bytes of a file; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(64)
    except (ConfigError, OSError):
        return b""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading its bytes.

    Raises:
        ConfigError: if the file is absent, may not be read, or is a folder, FIFO, socket or device.
    """
    try:  # opening a FIFO without a writer would block
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL byte in the name
        raise ConfigError(f"{str(path)!r}: cannot be read ({error}). Give the path of a file.") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a file.") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ConfigError(f"{path}: cannot be read (it is a {_kind(mode)}). Give the path of a file.")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
        ConfigError: as `open_regular`, or if the file is longer.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = file.read(size + 1 if size <= most else 0)  # `read` allocates its argument in advance
            while size <= most >= len(content) and (more := file.read(max(len(content), MIB))):  # it grew; /proc
                content += more
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a file.") from error
    if max(size, len(content)) > most:
        raise ConfigError(f"{path}: is larger than {most / MIB:g} MB. Check the path.")
    return content


def _kind(mode: int) -> str:
    kinds = {stat.S_ISDIR: "folder", stat.S_ISFIFO: "FIFO", stat.S_ISSOCK: "socket"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "device")


def read_text(path: Path, most: int = MOST) -> str:
    """Read a text file as `read_bytes`, decoded and without a byte order mark; line breaks are not translated.

    Raises:
        ConfigError: as `read_bytes`, or for another encoding, with the line and the command that converts the file.
    """
    content = read_bytes(path, most)
    if other := other_file(content[:64]):
        raise ConfigError(f"{path}: {other}.")
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) or content[:4].count(0) == 3:
        raise ConfigError(f"{path}: is UTF-32. {_convert('utf-32', path)}")
    if encoding == "utf-8" and 0 in content[:2] and content[:4].count(0) == 2:
        order = "utf-16le" if content[0] else "utf-16be"
        raise ConfigError(f"{path}: is UTF-16 without a byte order mark. {_convert(order, path)}")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        if encoding == "utf-16" or b"\0" in content:
            raise ConfigError(f"{path}: line {line}: is not UTF-8 text. Give a text file.") from error
        where = f"{path}: line {line}: byte 0x{content[error.start]:02x}"
        raise ConfigError(f"{where} is not UTF-8 text. {_convert('windows-1252', path)}") from error


def _convert(encoding: str, path: Path) -> str:
    return f"Convert the file, if it is {encoding}: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > NEW_FILE"


def lines_of(text: str) -> list[str]:
    """Split a text at LF, CR LF and CR; the last line may lack a line break."""
    lines = _BREAK.split(text)
    return lines[:-1] if not lines[-1] else lines
