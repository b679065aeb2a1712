"""Fault injection: the calls by which a run makes data durable, counted and interrupted.

A run is killed *before* or *after* the n-th call, or *within* it (the file is then truncated, as if the machine had
died during the write). A file that was renamed before it was synced is also truncated when its writer dies, since a
crash of the machine would lose its bytes. The same n is the same call in every run of the same settings.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

When = Literal["before", "within", "after"]
WHENS: tuple[When, ...] = ("before", "within", "after")
CALLS = ("fsync", "replace", "rename", "link", "unlink")  # of `os`; they decide whether a file exists, and whole
_TORN_BYTES = 40  # at most so much of a file's end is missing: less than one record of the outbox


@dataclass(frozen=True)
class Call:
    """The intercepted call of `os`: its name and its file."""

    number: int  # from 0
    name: str
    path: str
    descriptor: int | None = None  # of a file that is being written
    target: str = ""  # the second name, of those that have one


@contextmanager
def watched(root: Path, before: Callable[[Call], None], after: Callable[[Call], None]) -> Iterator[None]:
    """Announce every durable call on files below `root`; other calls are unchanged.

    Only for a process that does nothing else, since the functions of `os` stay replaced until it ends.
    """
    originals: dict[str, Any] = {name: getattr(os, name) for name in CALLS}
    count = 0

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(target: Any, *rest: Any, **named: Any) -> Any:
            nonlocal count
            descriptor = target if isinstance(target, int) else None
            path = _path_of(descriptor) if descriptor is not None else os.fspath(target)
            if not str(path).startswith(str(root)):
                return original(target, *rest, **named)
            second = os.fspath(rest[0]) if rest and name in ("replace", "rename", "link") else ""
            call = Call(count, name, str(path), descriptor, str(second))
            count += 1
            before(call)
            try:
                return original(target, *rest, **named)
            finally:  # also if it failed: a name that is taken is an answer
                after(call)

        return wrapped

    try:
        for name, original in originals.items():
            setattr(os, name, wrap(name, original))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def _path_of(descriptor: int) -> str:
    """Return the path of an open descriptor; empty where the system does not report it."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def die() -> None:
    """End this process as `kill -9` does: nothing is flushed, closed or printed."""
    os.kill(os.getpid(), signal.SIGKILL)


def _is_younger(path: str, started: float) -> bool:
    """Return whether a file was written since then; an earlier attempt synced its own files."""
    return os.path.isfile(path) and os.stat(path).st_mtime >= started


def tear(path: str, number: int) -> None:
    """Truncate a file by fewer bytes than a record of the outbox has."""
    os.truncate(path, max(0, os.path.getsize(path) - 1 - number % _TORN_BYTES))


@contextmanager
def killed_at(root: Path, number: int, when: When) -> Iterator[None]:
    """Die at the `number`-th durable call below `root` (from 0); a run with fewer calls survives."""

    started = time.time()
    synced: set[str] = set()
    unsafe: set[str] = set()  # names of files whose bytes are nowhere but in memory

    def lose() -> None:
        for path in filter(os.path.isfile, unsafe):
            tear(path, number)
        die()

    def before(call: Call) -> None:
        if call.number != number or when == "after":
            return
        if when == "within" and call.descriptor is not None and os.path.isfile(call.path):
            tear(call.path, number)
        lose()

    def after(call: Call) -> None:
        if call.name == "fsync":
            synced.add(call.path)
        elif call.target and call.path not in synced and _is_younger(call.target, started):
            unsafe.add(call.target)
        if call.number == number and when == "after":
            lose()

    with watched(root, before, after):
        yield


@contextmanager
def counted(root: Path, into: list[Call]) -> Iterator[None]:
    """Record every durable call below `root`."""
    with watched(root, into.append, lambda call: None):
        yield


@contextmanager
def no_space_from(root: Path, number: int) -> Iterator[None]:
    """Let the disk of `root` be full from the `number`-th durable call on; removing files still works."""

    def refuse(call: Call) -> None:
        if call.number >= number and call.name != "unlink":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)

    with watched(root, refuse, lambda call: None):
        yield
