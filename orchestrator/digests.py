"""SHA-256 of values, of files and of our own sources; those of files are remembered by (path, size, times).

`python3 orchestrator/digests.py` prints the digest of the sources; it needs no package, not even ours.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCES = ("orchestrator", "methods", "search_spaces", "sandbox")
# The folder of the package: in a checkout orchestrator/ lies next to it, and a link leads there
ROOT = Path(__file__).absolute().parents[1]
ROOT = ROOT / "ctvr" if (ROOT / "ctvr" / "orchestrator").is_dir() else ROOT
_FRESH_NS = 2 * 10**9  # a file this young may still change without its times changing
_LINE_LIMIT = 4000  # bytes; appends below a page are not mixed with those of other processes

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # made once: a stream has a key for each video

Identity = tuple[int, int, int]  # of a file: size in bytes, modification and status-change time in ns


def cache_folder() -> Path:
    """Where this machine keeps what can be made again: $CTVR_CACHE, else $XDG_CACHE_HOME/ctvr, else ~/.cache/ctvr."""
    named = os.environ.get("CTVR_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ctvr"


def canonical(value: Any) -> str:
    """The same text for equal values, whatever the order of keys. NaN and infinities are written as Python does.

    Raises:
        ValueError: for what JSON cannot say (sets, arrays, bytes, objects).
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {error}.") from None


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value, independent of the order of keys.

    Raises:
        ValueError: as `canonical`.
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest_sources(files: Iterable[Path], root: Path = ROOT) -> str:
    """SHA-256 (hex) of source files: of their paths below `root`, the package `ctvr`, and their contents."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def list_sources(room: str, root: Path = ROOT) -> list[Path]:
    """Every Python file below a room such as `methods/layers`."""
    return sorted((root / room).rglob("*.py"))


def list_imported_sources(files: Iterable[Path], room: str, root: Path = ROOT) -> list[Path]:
    """The files directly in `room` that these are or import, lazily or not, and what those import in turn."""
    todo, seen, found = list(files), set[Path](), set[Path]()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        if file.parent == root / room:
            found.add(file)
        names = _imported(file.read_text(encoding="utf-8"), f"ctvr.{room.replace('/', '.')}")
        todo += [named for name in names if (named := root / room / f"{name}.py").is_file()]
    return sorted(found)


@functools.lru_cache(maxsize=1024)
def _imported(source: str, package: str) -> tuple[str, ...]:
    """The modules of `package` that a source imports, by the first name below it."""
    modules = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    below = (module.removeprefix(f"{package}.") for module in modules if module.startswith(f"{package}."))
    return tuple(sorted({name.partition(".")[0] for name in below}))


def source_digest(root: Path = ROOT) -> str:
    """Twelve hexadecimal digits that stand for the sources of this installation: equal on nodes that run the same code.

    Only Python files count, by their paths below `root`, the folder of the package `ctvr`.
    """
    return digest_sources((file for package in SOURCES for file in list_sources(package, root)), root)[:12]


def digest_file(path: str | Path, cache: Path | None = None) -> str:
    """SHA-256 (hex) of a file's bytes; of a folder: of the names and digests of the files directly in it.

    A digest is remembered in `cache` (default `cache_folder()`) and reused while path, size, modification and
    status-change time stay the same. Several processes may share the cache; without a writable one it only works
    more slowly.

    Raises:
        FileNotFoundError: if there is nothing at `path`.
    """
    full = os.path.join(os.getcwd(), path) if not os.path.isabs(path) else str(path)
    status = os.stat(full)
    if stat.S_ISDIR(status.st_mode):
        files = sorted(p for p in Path(full).iterdir() if p.is_file() and not p.name.startswith("."))
        return digest_of([[p.name, digest_file(p, cache)] for p in files])
    known = _FileDigestCache.of((cache or cache_folder()) / "digests.jsonl")
    before = identity_of(status)
    digest = known.get(full, before)
    while digest is None:
        digest = _hash(Path(full))
        after = identity_of(os.stat(full))
        if after != before:  # written to while it was read
            before, digest = after, None
        elif is_settled(before):
            known.add(full, before, digest)
    return digest


def identity_of(status: os.stat_result) -> Identity:
    """While it stays the same, a file that is settled does."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_settled(identity: Identity) -> bool:
    """Whether a file is old enough that another change would change its times."""
    return time.time_ns() - max(identity[1:]) > _FRESH_NS


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class _FileDigestCache:
    """Known digests: a file of JSON lines that processes append to; damaged lines are skipped, later ones win."""

    _open: dict[Path, _FileDigestCache] = {}

    def __init__(self, file: Path) -> None:
        self.file, self.read_to = file, 0
        self.known: dict[str, tuple[Identity, str]] = {}

    @classmethod
    def of(cls, file: Path) -> _FileDigestCache:
        return cls._open.setdefault(file, cls(file))

    def get(self, path: str, identity: Identity) -> str | None:
        entry = self.known.get(path)
        if entry is None or entry[0] != identity:
            self._catch_up()
            entry = self.known.get(path)
        return entry[1] if entry is not None and entry[0] == identity else None

    def add(self, path: str, identity: Identity, digest: str) -> None:
        self.known[path] = (identity, digest)
        line = (json.dumps([path, *identity, digest]) + "\n").encode()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if len(line) < _LINE_LIMIT:
                with self.file.open("ab", buffering=0) as file:
                    file.write(line)

    def _catch_up(self) -> None:
        """Read what other processes appended since the last look."""
        try:
            if self.file.stat().st_size < self.read_to:  # somebody emptied the cache
                self.read_to = 0
            with self.file.open("rb") as file:
                file.seek(self.read_to)
                data = file.read()
        except OSError:
            return
        end = data.rfind(b"\n") + 1  # a line still being written waits for the next look
        self.read_to += end
        for line in data[:end].splitlines():
            with contextlib.suppress(ValueError, TypeError):
                path, size, modified, changed, digest = json.loads(line)
                if isinstance(path, str) and isinstance(digest, str) and len(digest) == 64:
                    self.known[path] = ((size, modified, changed), digest)


if __name__ == "__main__":
    sys.stdout.write(source_digest() + "\n")
