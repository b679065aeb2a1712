"""Files of a store in a local folder: atomic, durable writes, and a cache of limited size.

Own code instead of obstore's LocalStore for three reasons: a write is on disk (fsync of file and folder) when it
returns, objects can be memory-mapped, and an error can say how many bytes were missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ConfigError, StoreError

_CACHE_GB = 100.0
_STALE_SECONDS = 24 * 3600
_TOUCH_SECONDS = 60  # a use is noted this often
_UNIT = 64 * 1024  # bytes, in which writes to the cache are counted
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}


class Entry(NamedTuple):
    """An object as it is listed. `modified`: seconds since 1970, by the clock of who keeps it."""

    name: str
    bytes: int
    modified: float


class LocalFiles:
    """Named byte strings below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._temporary = root / ".tmp"

    def open(self) -> None:
        """Make the folder and remove what crashed writers left behind a day ago.

        Raises:
            ConfigError: if the folder cannot be written.
        """
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            with self._temporary_file() as probe:
                probe.touch()
            for file in self._temporary.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - file.stat().st_mtime > _STALE_SECONDS:
                        file.unlink()
        except OSError as error:
            raise ConfigError(
                f"store {self.root}: cannot be written ({error.strerror}). Choose a folder that you may write to."
            ) from error

    def path(self, name: str) -> Path:
        return self.root / name

    def exists(self, name: str) -> bool:
        return self.path(name).is_file()

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError if there is no such object."""
        return self.path(name).read_bytes()

    def write(self, name: str, buffers: Sequence[Any], create: bool = False) -> bool:
        """Publish the concatenated buffers under a name, all or nothing; they are on disk when this returns.

        Returns:
            False if `create` and the name exists already (nothing is changed), else True.

        Raises:
            StoreError: disk full or any other failure of the file system.
        """
        target, needed = self.path(name), sum(len(buffer) for buffer in buffers)
        try:
            try:
                return self._publish(target, buffers, create)
            except FileNotFoundError:  # a process whose clock is ahead took our temporary file for a day old
                return self._publish(target, buffers, create)
        except OSError as error:
            raise self._explained(error, target, needed) from error

    def _publish(self, target: Path, buffers: Sequence[Any], create: bool) -> bool:
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._temporary_file() as temporary:
            _write_and_sync(temporary, buffers, "xb")
            if not create:
                os.replace(temporary, target)
            elif not _link(temporary, target, buffers):
                return False
        _sync_folder(target.parent)
        return True

    def delete(self, *names: str) -> None:
        """Remove objects, if they are there; memory maps of them stay valid.

        Raises:
            StoreError: if the file system refuses.
        """
        for name in names:
            try:
                self.path(name).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{self.path(name)}: cannot be deleted ({error.strerror or error}).") from error

    def take_away(self, name: str) -> Path | None:
        """Move an object aside, atomically, so that its bytes can be judged once more; None if it is gone."""
        aside = self._temporary / f"{uuid.uuid4().hex}.aside"
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            os.rename(self.path(name), aside)
        except FileNotFoundError:
            return None
        return aside

    def put_back(self, aside: Path, name: str) -> None:
        """Undo `take_away`, unless somebody wrote the object anew in the meantime."""
        with contextlib.suppress(FileExistsError):
            os.link(aside, self.path(name))
        aside.unlink(missing_ok=True)

    def names(self, folder: str = "") -> Iterator[Entry]:
        """Every object below a folder, sorted by name."""
        found: list[Entry] = []
        for parent, folders, files in os.walk(self.root / folder):
            folders[:] = [f for f in folders if not f.startswith(".")]
            for file in files:
                path = Path(parent, file)
                if file.startswith("."):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    found.append(Entry(path.relative_to(self.root).as_posix(), status.st_size, status.st_mtime))
        yield from sorted(found)

    def clock(self) -> float:
        """Now, by the clock that stamps the objects; it may be a file server's."""
        with self._temporary_file() as probe:
            probe.touch()
            return probe.stat().st_mtime

    def leftovers(self, before: float) -> list[str]:
        """None: `open` removes what crashed writers left."""
        return []

    @contextlib.contextmanager
    def _temporary_file(self) -> Iterator[Path]:
        self._temporary.mkdir(parents=True, exist_ok=True)
        path = self._temporary / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _explained(self, error: OSError, target: Path, needed: int) -> StoreError:
        if error.errno in _NO_SPACE:
            try:
                free = f"{shutil.disk_usage(self.root).free} bytes are free"
            except OSError:
                free = "free space is unknown"
            return StoreError(f"{target}: disk full, {needed} bytes needed, {free}. Free some space and run again.")
        return StoreError(f"{target}: cannot be written ({error.strerror or error}).")


class DiskCache(LocalFiles):
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
        self._everyone = LocalFiles(root.parent)
        self._written = root.parent / ".written"  # its size: units written by all processes since the last eviction
        self._is_measured = False

    def open(self) -> None:
        """Make the folder.

        Raises:
            ConfigError: if it cannot be written.
        """
        try:
            super().open()
        except ConfigError as error:
            raise ConfigError(f"CTVR_CACHE: {str(error).removeprefix('store ')}") from error

    def touch(self, name: str) -> None:
        """Note that an object was used."""
        with contextlib.suppress(OSError):
            if time.time() - self.path(name).stat().st_mtime > _TOUCH_SECONDS:
                os.utime(self.path(name))

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
        with self._written.open("ab") as file:
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


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Whether this process is the only one within; it does not wait. A process that dies lets go."""
    with file.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _write_and_sync(path: Path, buffers: Sequence[Any], mode: str) -> None:
    with path.open(mode) as file:
        for buffer in buffers:
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, target: Path, buffers: Sequence[Any]) -> bool:
    """Give the file its name only if the name is free."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:  # no hard links here: exclusive creation; a crash in between leaves a damaged object, which is removed
            _write_and_sync(target, buffers, "xb")
        except FileExistsError:
            return False
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
