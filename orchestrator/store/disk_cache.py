"""Copies of a remote store's objects on this machine: a folder of limited size, the least recently used go first."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError, StoreError
from ctvr.orchestrator.store.local import LocalFiles, Stamp

_CACHE_GB = 100.0
_TOUCH_SECONDS = 60  # a use is noted this often
_UNIT = 64 * 1024  # bytes, in which writes to the cache are counted


class _Copies(LocalFiles):
    """Copies of all stores; the time of one is that of its last use."""

    def time_of(self, status: os.stat_result) -> float:
        return max(status.st_atime, status.st_mtime)


class DiskCache(_Copies):
    """Copies of a remote store's objects on this machine. The least recently used go first.

    All stores and processes of the machine share one limit: `root` lies beside the folders of other stores. A copy
    that a process has mapped may be evicted: its map stays valid, its bytes are free when the last map is gone.

    Args:
        root: folder of this store's copies.
        limit: bytes of all folders beside it, itself included.
    """

    def __init__(self, root: Path, limit: int) -> None:
        super().__init__(root)
        self.limit = limit
        self.evicted = 0  # by this process
        self._everyone = _Copies(root.parent)
        self._written = root.parent / ".written"  # its size: units written by all processes since the last eviction
        self._is_measured = False

    def open(self) -> None:
        """Make the folder; copies in one that cannot be written are used, and none is added.

        Raises:
            ConfigError: if it cannot be made.
        """
        try:
            super().open()
        except ConfigError as error:
            raise ConfigError(f"CTVR_CACHE: {str(error).removeprefix('store ')}") from error

    def stamp_of(self, status: os.stat_result) -> Stamp:
        """As for other files, without the time that a note of its use changes."""
        return status.st_ino, status.st_size, status.st_mtime_ns

    def is_unchanged(self, name: str, stamp: Stamp | None) -> bool:
        """As for other files; a copy that was evicted stays what it was for who has mapped it."""
        return super().is_unchanged(name, stamp) or not os.path.lexists(self.path(name))

    def touch(self, name: str) -> None:
        """Note that an object was used. The time of its content stays: it shows whether the content was changed."""
        with contextlib.suppress(OSError):
            status = self.path(name).stat()
            if time.time() - self.time_of(status) > _TOUCH_SECONDS:
                os.utime(self.path(name), ns=(time.time_ns(), status.st_mtime_ns))

    def keep(self, name: str, data: bytes | memoryview) -> bool:
        """Store a copy; False if it does not fit. A cache that fails never fails its user."""
        if len(data) > self.limit:
            return False
        try:
            self.write(name, [data])
        except StoreError:
            try:
                self._evict(name, is_full=True)
                self.write(name, [data])
            except (OSError, StoreError):
                return False
        with contextlib.suppress(OSError, StoreError):
            if self._count(len(data)) > self.limit // 20 or not self._is_measured:
                self._is_measured = True
                self._evict(name)
        return True

    def size(self) -> tuple[int, int]:
        """Number and bytes of all copies, those of other stores too."""
        sizes = [entry.bytes for entry in self._everyone.names()]
        return len(sizes), sum(sizes)

    def _count(self, written: int) -> int:
        """Bytes that all processes have written since the last eviction, rounded up to units."""
        with open(self._written, "ab", opener=_at_once) as file:
            file.write(b"." * -(-written // _UNIT))
            return file.tell() * _UNIT

    def _evict(self, keep: str, is_full: bool = False) -> None:
        """Make room down to nine tenths of the limit, or to half of what is there if the disk `is_full`.

        Of several processes one works, the others go on. A twentieth of the disk stays free for others: Ray stops
        working above that.
        """
        with _locked(self.root.parent / ".evicting") as is_mine:
            if not is_mine:
                return
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self._written, 0)
            copies = sorted(self._everyone.names(), key=lambda entry: entry.modified)
            total = sum(entry.bytes for entry in copies)
            disk = shutil.disk_usage(self.root)
            allowed = total // 2 if is_full else min(self.limit * 9 // 10, total + disk.free - disk.total // 20)
            for name, size, _ in copies:
                if total <= allowed:
                    break
                if name != f"{self.root.name}/{keep}":
                    self._everyone.delete(name)
                    self.evicted += 1
                    total -= size


def cache_limit() -> int:
    """Bytes of $CTVR_CACHE_GB, else 100 GB.

    Raises:
        ConfigError: if it is no number.
    """
    text = os.environ.get("CTVR_CACHE_GB", str(_CACHE_GB))
    try:
        limit = float(text)
        if not 0 <= limit < 1e9:
            raise ValueError
    except ValueError:
        raise ConfigError(f"CTVR_CACHE_GB: {text!r} is no number of gigabytes. Write for example 200.") from None
    return int(limit * 1e9)


def _at_once(path: str, flags: int) -> int:
    """Open a file; a pipe in its place is an error and not waited for."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Whether this process is the only one within; it does not wait. A process that dies lets go."""
    with open(file, "ab", opener=_at_once) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
