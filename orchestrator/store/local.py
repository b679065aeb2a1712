"""Files of a store in a local folder, written atomically and durably.

This replaces obstore's LocalStore for three reasons: a write is on disk (fsync of file and folder) when it returns,
objects can be memory-mapped, and an error reports how many bytes were missing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ctvr.orchestrator.errors import NO_SPACE, NOT_WRITABLE, ConfigError, CorruptObject, StoreError
from ctvr.orchestrator.store.serialization import check

_STALE_SECONDS = 24 * 3600
_NO_FILE = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV}  # a link to itself, a socket, a folder, a device
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}

Stamp = tuple[int, ...]  # identifies a file's content: it changes when the content does


class Entry(NamedTuple):
    """A listed object. `modified`: seconds since 1970, by the clock of the storage."""

    name: str
    bytes: int
    modified: float


class Size(NamedTuple):
    """Number of objects, and their total size in bytes."""

    objects: int
    bytes: int


def size_of(entries: Iterable[Entry]) -> Size:
    """Return the number and total bytes of the entries."""
    sizes = [entry.bytes for entry in entries]
    return Size(len(sizes), sum(sizes))


class LocalFiles:
    """Named byte strings in a folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._temporary = root / ".tmp"

    def open(self) -> None:
        """Create the folder and remove day-old files of crashed writers; a read-only folder is left unchanged.

        Raises:
            ConfigError: if the folder does not exist and cannot be created, or cannot be used at all.
        """
        try:
            self._probe()
            for file in self._temporary.iterdir():
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    if time.time() - file.lstat().st_mtime > _STALE_SECONDS:
                        file.unlink()
        except OSError as error:
            if error.errno not in NOT_WRITABLE or not os.access(self.root, os.R_OK | os.X_OK):
                raise self._unwritable(error) from error

    def check_writable(self) -> None:
        """Check that the folder is writable, before work that stores results there starts.

        Raises:
            ConfigError: if it is not writable.
        """
        try:
            self._probe()
        except OSError as error:
            raise self._unwritable(error) from error

    def _probe(self) -> None:
        self._temporary.mkdir(parents=True, exist_ok=True)
        with self._temporary_file() as probe:
            probe.touch()

    def _unwritable(self, error: OSError) -> ConfigError:
        remedy = "Choose a folder that you may write to."
        return ConfigError(f"cannot be written ({error.strerror})", f"store {self.root}", remedy=remedy)

    def path(self, name: str) -> Path:
        return self.root / name

    def exists(self, name: str) -> bool:
        return self.path(name).is_file()

    def read(self, name: str) -> bytes:
        """Read a whole object.

        Raises:
            FileNotFoundError: if it does not exist.
            CorruptObject: if it is not a file.
            StoreError: if the system refuses to read it.
        """
        try:
            with self.open_file(name) as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{self.path(name)}: cannot be read ({error.strerror or error}).") from error

    def open_file(self, name: str) -> BinaryIO:
        """Open an object for reading, without blocking on a pipe, a socket, a folder or a loop of links in its place.

        Raises:
            FileNotFoundError: if it does not exist.
            CorruptObject: if it is not a file.
            StoreError: if the system refuses to read it.
        """
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:  # a file in place of a folder of objects
            raise FileNotFoundError(*error.args) from None
        except OSError as error:
            if error.errno in _NO_FILE:
                raise CorruptObject(f"is not a file ({error.strerror})") from None
            raise StoreError(f"{self.path(name)}: cannot be read ({error.strerror}).") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CorruptObject("is not a file")
        return os.fdopen(descriptor, "rb")

    def stamp_of(self, status: os.stat_result) -> Stamp:
        """Return the stamp of a file, which changes with the content even if the modification time is set back."""
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def is_unchanged(self, name: str, stamp: Stamp | None) -> bool:
        """Report whether the file of an object still has this stamp."""
        try:
            return self.stamp_of(os.stat(f"{self.root}/{name}")) == stamp
        except OSError:
            return False

    def write(self, name: str, buffers: Sequence[Any], create: bool = False) -> bool:
        """Write the concatenated buffers atomically under a name; they are on disk when this method returns.

        Returns:
            False if `create` and the name already exists (nothing is changed); otherwise True.

        Raises:
            StoreError: if the disk is full or the file system fails otherwise.
        """
        target, needed = self.path(name), sum(len(buffer) for buffer in buffers)
        try:
            try:
                return self._publish(target, buffers, create)
            except FileNotFoundError:  # a process with a fast clock took our file for a day old and removed it
                return self._publish(target, buffers, create)
        except OSError as error:
            raise self._explain(error, target, needed) from error

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
        """Remove objects that exist; memory maps of them remain valid.

        Raises:
            StoreError: if the file system refuses.
        """
        for name in names:
            try:
                self.path(name).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{self.path(name)}: cannot be deleted ({error.strerror or error}).") from error

    def discard(self, name: str) -> str:
        """Remove a damaged object unless another process has replaced it with an intact one.

        Returns:
            the outcome for a message, a predicate whose subject is the object.
        """
        path, aside = self.path(name), self._temporary / f"{uuid.uuid4().hex}.aside"
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()  # succeeds for an empty folder
                return "has been removed and will be created again"
            self._temporary.mkdir(parents=True, exist_ok=True)
            os.rename(path, aside)  # atomic, so that its bytes can be checked once more
        except FileNotFoundError:
            return "no longer exists and will be created again"
        except OSError as error:
            return f"remains, because it cannot be removed ({error.strerror}). Move it away"
        try:
            check(name, self.read(aside.relative_to(self.root).as_posix()))
        except (CorruptObject, FileNotFoundError, StoreError):  # FileNotFoundError if a link to itself was renamed
            aside.unlink(missing_ok=True)
            return "has been removed and will be created again"
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink(missing_ok=True)
        return "has been created again by another process"

    def names(self, folder: str = "") -> Iterator[Entry]:
        """Yield the names of all objects in a folder and its subfolders, sorted."""
        found: list[Entry] = []
        for name in self.listed(folder):
            with contextlib.suppress(FileNotFoundError):
                status = self._status(name)
                found.append(Entry(name, status.st_size, self.time_of(status)))
        yield from sorted(found)

    def time_of(self, status: os.stat_result) -> float:
        """Return the time of an object that listings report, in seconds since 1970."""
        return status.st_mtime

    def _status(self, name: str) -> os.stat_result:
        try:
            return self.path(name).stat()
        except OSError as error:  # a loop of links: list the link itself, so that it can be seen and removed
            if error.errno != errno.ELOOP:
                raise
            return self.path(name).lstat()

    def listed(self, folder: str = "") -> Iterator[str]:
        """Yield the names of all objects in any order, without calling `stat` for each object."""
        for parent, folders, files in os.walk(self.root / folder):
            folders[:] = [f for f in folders if not f.startswith(".")]
            below = Path(parent).relative_to(self.root).as_posix()
            prefix = "" if below == "." else f"{below}/"
            yield from [prefix + file for file in files if file[0] != "."]

    def state_of(self, folder: str) -> int:
        """Return a value that changes when a file is added to or removed from a folder; 0 without the folder."""
        try:
            return os.stat(self.root / folder).st_mtime_ns
        except OSError:
            return 0

    def clock(self) -> float:
        """Return the time in seconds since 1970 by the clock that dates the objects, such as a file server's clock."""
        try:
            with self._temporary_file() as probe:
                probe.touch()
                return probe.stat().st_mtime
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
            return time.time()

    def leftovers(self, before: float) -> list[str]:
        """Return an empty list: `open` already removes the files of crashed writers."""
        return []

    @contextlib.contextmanager
    def _temporary_file(self) -> Iterator[Path]:
        self._temporary.mkdir(parents=True, exist_ok=True)
        path = self._temporary / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _explain(self, error: OSError, target: Path, needed: int) -> StoreError:
        if error.errno in NO_SPACE:
            try:
                free = f"{shutil.disk_usage(self.root).free} bytes are free"
            except OSError:
                free = "free space is unknown"
            return StoreError(f"{target}: disk full, {needed} bytes needed, {free}. Free some space and run again.")
        return StoreError(f"{target}: cannot be written ({error.strerror or error}).")


def _write_and_sync(path: Path, buffers: Sequence[Any], mode: str) -> None:
    with path.open(mode) as file:
        for buffer in buffers:
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, target: Path, buffers: Sequence[Any]) -> bool:
    """Give a written file its final name if the name is free; return whether it was free."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links, the target is created exclusively. A crash leaves a damaged object, which is removed
        try:
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
