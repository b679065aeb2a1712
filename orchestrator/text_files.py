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
_BREAK = re.compile(r"\r\n|\n|\r")  # `str.splitlines` also splits at U+2028, U+0085, VT and FF, which occur in captions


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading its bytes.

    Raises:
        ConfigError: if the file is absent, may not be read, or is a folder, FIFO, socket or device.
    """
    try:  # opening a FIFO without a writer would block
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL byte in the name
        raise ConfigError(f"cannot be read ({error})", f"{str(path)!r}", remedy="Give the path of a file.") from error
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", path, remedy="Give the path of a file.") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ConfigError(f"cannot be read (it is a {_kind(mode)})", path, remedy="Give the path of a file.")
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
            raise ConfigError(f"cannot be read ({error.strerror})", path, remedy="Give the path of a file.") from error
    if max(size, len(content)) > most:
        raise ConfigError(f"is larger than {most / MIB:g} MB", path, remedy="Check the path.")
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
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) or content[:4].count(0) == 3:
        raise ConfigError(f"is UTF-32. {_convert('utf-32', path)}", path)
    if encoding == "utf-8" and 0 in content[:2] and content[:4].count(0) == 2:
        order = "utf-16le" if content[0] else "utf-16be"
        raise ConfigError(f"is UTF-16 without a byte order mark. {_convert(order, path)}", path)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        if encoding == "utf-16" or b"\0" in content:
            raise ConfigError(f"line {line}: is not UTF-8 text", path, remedy="Give a text file.") from error
        where = f"{path}: line {line}: byte 0x{content[error.start]:02x}"
        raise ConfigError(f"{where} is not UTF-8 text. {_convert('windows-1252', path)}") from error


def _convert(encoding: str, path: Path) -> str:
    return f"Convert the file, if it is {encoding}: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > NEW_FILE"


def lines_of(text: str) -> list[str]:
    """Split a text at LF, CR LF and CR; the last line may lack a line break."""
    lines = _BREAK.split(text)
    return lines[:-1] if not lines[-1] else lines
