"""Local copies of a remote store's objects: a folder of limited size with least-recently-used eviction."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError, StoreError
from ctvr.orchestrator.processes import hold_lock, open_nonblocking
from ctvr.orchestrator.store.local import LocalFiles, Stamp

_CACHE_GB = 100.0
_TOUCH_SECONDS = 60  # minimum time between two updates of a copy's time of use
_UNIT = 64 * 1024  # bytes; unit of the counter of writes to the cache


class _Copies(LocalFiles):
    """Folder of copies; the time of a copy in a listing (`names`) is the time of its last use."""

    def time_of(self, status: os.stat_result) -> float:
        return max(status.st_atime, status.st_mtime)


class DiskCache(_Copies):
    """Local copies of a remote store's objects, evicted by least recent use.

    All stores and processes of the machine share one limit, since the parent of `root` contains the folders of all
    stores. A copy that a process has mapped can be evicted. Its map remains valid, and the last map frees the space.

    Args:
        root: folder of this store's copies.
        limit: bytes of all stores' folders together.
    """

    def __init__(self, root: Path, limit: int) -> None:
        super().__init__(root)
        self.limit = limit
        self.evicted = 0  # copies evicted by this process
        self._everyone = _Copies(root.parent)
        self._written = root.parent / ".written"  # file size: units written by all processes since the last eviction
        self._is_measured = False

    def open(self) -> None:
        """Create the folder. If it is not writable, existing copies are used but none are added.

        Raises:
            ConfigError: if it cannot be created.
        """
        try:
            super().open()
        except ConfigError as error:
            raise error.at(f"CTVR_CACHE: {self.root}") from error

    def stamp_of(self, status: os.stat_result) -> Stamp:
        """Return the stamp without the status-change time, which `touch` changes."""
        return status.st_ino, status.st_size, status.st_mtime_ns

    def is_unchanged(self, name: str, stamp: Stamp | None) -> bool:
        """Report whether a copy still has this stamp; True for an evicted copy, since its memory map remains valid."""
        return super().is_unchanged(name, stamp) or not os.path.lexists(self.path(name))

    def touch(self, name: str) -> None:
        """Record a use of a copy as its access time; the modification time shows whether the content changed."""
        with contextlib.suppress(OSError):
            status = self.path(name).stat()
            if time.time() - self.time_of(status) > _TOUCH_SECONDS:
                os.utime(self.path(name), ns=(time.time_ns(), status.st_mtime_ns))

    def keep(self, name: str, data: bytes | memoryview) -> bool:
        """Store a copy; return False if it does not fit. Failures of the cache are never raised."""
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
        """Return the number and total bytes of all copies, including copies of other stores."""
        sizes = [entry.bytes for entry in self._everyone.names()]
        return len(sizes), sum(sizes)

    def _count(self, written: int) -> int:
        """Return the bytes that all processes have written since the last eviction, rounded up by `_UNIT`."""
        with open(self._written, "ab", opener=open_nonblocking) as file:
            file.write(b"." * -(-written // _UNIT))
            return file.tell() * _UNIT

    def _evict(self, keep: str, is_full: bool = False) -> None:
        """Evict down to nine tenths of the limit, or to half of the current size if the disk `is_full`.

        Only one of several processes evicts; the other processes continue. A twentieth of the disk is kept free, since
        Ray stops starting tasks on a disk that is more than 95 % full.
        """
        with contextlib.suppress(BlockingIOError), hold_lock(self.root.parent / ".evicting", wait=False):
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
    """Return the limit of the copies in bytes: $CTVR_CACHE_GB, or 100 GB if it is not set.

    Raises:
        ConfigError: if it is not a number.
    """
    text = os.environ.get("CTVR_CACHE_GB", str(_CACHE_GB))
    try:
        limit = float(text)
        if not 0 <= limit < 1e9:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a number of gigabytes", "CTVR_CACHE_GB", remedy="Set it to, for example, 200."
        ) from None
    return int(limit * 1e9)
