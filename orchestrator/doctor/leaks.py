"""Secrets that have got into files are found.

Files are the run folder, MLflow's database and Ray's logs; a finding names the file, never the value.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HALF_LIMIT = 4 * 2**20  # bytes read from the beginning, and as many from the end, of a large file
_SKIPPED = re.compile(  # pictures and numbers
    r"\.(?:mp4|mkv|webm|avi|mov|png|jpe?g|gif|pdf|safetensors|np[yz]|pth?|lock)$", re.IGNORECASE
)
_SQLITE = b"SQLite format 3\0"

PATTERNS: dict[str, re.Pattern[bytes]] = {
    "an AWS access key": re.compile(rb"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9])"),
    "an AWS secret key": re.compile(
        rb"(?i)aws_?secret_?(?:access_?)?key[\"']?\s{0,9}[:=,]\s{0,9}[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"
    ),
    "a password in an address": re.compile(rb"://[^\s/:@\"'<>]{1,64}:(?!\*+@)[^\s/@\"'<>]{1,128}@"),
    "a private key": re.compile(rb"-----BEGIN (?:[A-Z]{1,16} ){0,3}PRIVATE KEY-----"),
    "an access token": re.compile(
        rb"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40}|hf_[A-Za-z0-9]{34}"
        rb"|xox[abprs]-[A-Za-z0-9-]{20}|glpat-[\w-]{20})"
    ),
    "a password or token setting": re.compile(
        rb"\b[A-Z][A-Z0-9_]{0,40}(?:PASSWORD|SECRET|TOKEN|API_KEY)[\"']?\s{0,9}[:=]\s{0,9}[\"']?[^\s\"'*,;{}$<>]{8}"
    ),
}


@dataclass(frozen=True)
class Leak:
    """A file and what is in it. `is_certain`: the value of a variable of this environment, not just the look of one."""

    file: Path
    kind: str
    is_certain: bool


@dataclass
class Search:
    """What `find_leaks` found, and how much of it was not read."""

    leaks: list[Leak] = field(default_factory=list)
    read: int = 0  # files
    unread: int = 0  # files: no time left, or not readable


def find_leaks(folder: Path, values: Mapping[str, str], skip: Collection[Path] = (), seconds: float = 3.0) -> Search:
    """Read the files below `folder`, newest first, for as long as there is time.

    Args:
        folder: where to look; links are not followed.
        values: variable name -> secret value, from `secret_values`.
        skip: folders to leave out (the object store: arrays under digests).
        seconds: when to stop; what was not read is counted.
    """
    until = time.monotonic() + seconds
    search = Search()
    for _, file in sorted(_files(folder, {path.resolve() for path in skip}), reverse=True):
        content = _read(file) if time.monotonic() < until else None
        if content is None:
            search.unread += 1
            continue
        search.read += 1
        search.leaks += _look(file, content, values)
    return search


def _files(folder: Path, skip: Collection[Path]) -> list[tuple[int, Path]]:
    """(time of last change, file) of every file that may hold text."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(root, name).resolve() not in skip]
        for name in names:
            file = Path(root, name)
            if not _SKIPPED.search(name) and file.is_file() and not file.is_symlink():
                found.append((file.lstat().st_mtime_ns, file))
    return found


def _read(file: Path) -> bytes | None:
    """The file's bytes, of a large one its two ends; None if it cannot be read."""
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size <= 2 * HALF_LIMIT:
                return stream.read()
            start = stream.read(HALF_LIMIT)
            stream.seek(size - HALF_LIMIT)
            return start + b"\n" + stream.read()
    except OSError:
        return None


def _look(file: Path, content: bytes, values: Mapping[str, str]) -> list[Leak]:
    leaks = [
        Leak(file, f"the value of {name}", True) for name, value in values.items() if value.strip().encode() in content
    ]
    if leaks:
        return leaks
    if b"\0" in content[:8192] and not content.startswith(_SQLITE):  # chance would match in binary files
        return []
    kinds = (kind for kind, pattern in PATTERNS.items() if pattern.search(content))
    return [Leak(file, kind, False) for kind in kinds]
