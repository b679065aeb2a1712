"""SHA-256 digests of values, files and our sources. File digests are cached by path, size and times.

`python3 orchestrator/digests.py` prints the digest of the sources. This module imports only the standard library.
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
# The folder of the package `ctvr`. In a checkout it contains links to orchestrator/ and the other folders
ROOT = Path(__file__).absolute().parents[1]
ROOT = ROOT / "ctvr" if (ROOT / "ctvr" / "orchestrator").is_dir() else ROOT
_FRESH_NS = 2 * 10**9  # a file this new may change again without a new time stamp
_LINE_LIMIT = 4000  # bytes; appends below a page are atomic between processes

_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":")
)  # created once because a stream has a key for each video

Identity = tuple[int, int, int]  # a file's size in bytes, modification and status-change time in ns


def cache_folder() -> Path:
    """Return this machine's cache folder: $CTVR_CACHE if set, otherwise `ctvr` in $XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("CTVR_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ctvr"


def canonical(value: Any) -> str:
    """Encode a value as JSON with sorted keys, so that equal values give equal text.

    NaN is encoded as `NaN`, which is not standard JSON.

    Raises:
        ValueError: for values that JSON cannot encode (sets, arrays, bytes, objects).
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {error}.") from None


def digest_of(value: Any) -> str:
    """Return the SHA-256 (hex) of a JSON-serializable value, independent of the order of keys.

    Raises:
        ValueError: for values that JSON cannot encode.
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest_sources(files: Iterable[Path], root: Path = ROOT) -> str:
    """Return the SHA-256 (hex) of the paths of source files, relative to `root`, and of their contents."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def list_sources(package: str, root: Path = ROOT) -> list[Path]:
    """Return every Python file below a package such as `methods/layers`."""
    found = os.walk(root / package)  # four times as fast as `rglob`
    return sorted(Path(folder, name) for folder, _, names in found for name in names if name.endswith(".py"))


def list_module_sources(name: str, package: str, root: Path = ROOT) -> list[Path]:
    """Return the file of module `name` of a package, or all files of its subpackage `name`; [] if neither exists."""
    file = root / package / f"{name}.py"
    return [file] if file.is_file() else list_sources(f"{package}/{name}", root)


def list_imported_sources(files: Iterable[Path], package: str, root: Path = ROOT) -> list[Path]:
    """Return `files` and, transitively, the modules of `package` that they import, including imports inside functions.

    An imported subpackage contributes all its files.
    """
    todo, seen, known = list(files), set[Path](), set[str]()
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            names = {*_list_imports(file.read_text(encoding="utf-8"), f"ctvr.{package.replace('/', '.')}")} - known
            known |= names
            todo += [source for name in names for source in list_module_sources(name, package, root)]
    return sorted(seen)


@functools.lru_cache(maxsize=1024)
def _list_imports(source: str, package: str) -> tuple[str, ...]:
    """Return the modules and subpackages of `package` that a source imports (the first component below `package`)."""
    modules = list[str]()
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:  # only statements, an eighth of the nodes, because an expression cannot contain an import
        node = todo.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += getattr(node, block, ())
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    below = (module.removeprefix(f"{package}.") for module in modules if module.startswith(f"{package}."))
    return tuple(sorted({name.partition(".")[0] for name in below}))


def source_digest(root: Path = ROOT) -> str:
    """Return the first 12 hexadecimal digits of the digest of the installed sources, to compare the code of nodes.

    The digest covers only Python files and their paths relative to `root`, the folder of the package `ctvr`.
    """
    return digest_sources((file for package in SOURCES for file in list_sources(package, root)), root)[:12]


def digest_file(path: str | Path, cache: Path | None = None) -> str:
    """Return the SHA-256 (hex) of a file's bytes, or of the names and digests of the files directly in a folder.

    The digest is stored in `cache` (default: `cache_folder()`) and reused while path, size, modification and
    status-change time are unchanged. Several processes may share the cache. Without a writable cache every call
    reads the file.

    Raises:
        FileNotFoundError: if `path` does not exist.
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
        if after != before:  # changed while it was read
            before, digest = after, None
        elif is_settled(before):
            known.add(full, before, digest)
    return digest


def identity_of(status: os.stat_result) -> Identity:
    """Return a file's size and times, which identify its content if `is_settled`."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_settled(identity: Identity) -> bool:
    """Return whether a file is so old that any later change gives it new times."""
    return time.time_ns() - max(identity[1:]) > _FRESH_NS


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class _FileDigestCache:
    """A file of JSON lines to which processes append digests; damaged lines are skipped, and later lines override."""

    _open: dict[Path, _FileDigestCache] = {}

    def __init__(self, file: Path) -> None:
        self.file, self.read_to = file, 0
        self.lines: dict[bytes, bytes] = {}  # start of a line, up to the path -> the line, which `get` parses

    @classmethod
    def of(cls, file: Path) -> _FileDigestCache:
        return cls._open.setdefault(file, cls(file))

    def get(self, path: str, identity: Identity) -> str | None:
        if (found := self._find(path, identity)) is None:
            self._catch_up()
            found = self._find(path, identity)
        return found

    def _find(self, path: str, identity: Identity) -> str | None:
        with contextlib.suppress(KeyError, ValueError, TypeError, RecursionError):
            _, size, modified, changed, digest = json.loads(self.lines[_start(path)])
            if isinstance(digest, str) and len(digest) == 64 and (size, modified, changed) == identity:
                return digest
        return None

    def add(self, path: str, identity: Identity, digest: str) -> None:
        line = (json.dumps([path, *identity, digest]) + "\n").encode()
        self.lines[_start(path)] = line
        with contextlib.suppress(OSError):  # a read-only cache only costs time
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if len(line) < _LINE_LIMIT and (self.file.is_file() or not os.path.lexists(self.file)):
                with self.file.open("ab", buffering=0) as file:
                    file.write(line)

    def _catch_up(self) -> None:
        """Read the lines appended by other processes since the last read."""
        if not self.file.is_file():  # opening a FIFO would block
            return
        try:
            if self.file.stat().st_size < self.read_to:  # the cache was emptied
                self.read_to = 0
            with self.file.open("rb") as file:
                file.seek(self.read_to)
                data = file.read()
        except OSError:
            return
        end = data.rfind(b"\n") + 1  # an incomplete line is read by the next call
        self.read_to += end
        self.lines |= {line.rsplit(b", ", 4)[0]: line for line in data[:end].splitlines()}


def _start(path: str) -> bytes:
    return f"[{json.dumps(path)}".encode()


if __name__ == "__main__":
    sys.stdout.write(source_digest() + "\n")
