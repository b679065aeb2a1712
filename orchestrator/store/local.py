"""Files of a store in a local folder: atomic, durable writes, and a cache of limited size.

Own code instead of obstore's LocalStore for three reasons: a write is on disk (fsync of file and folder) when it
returns, objects can be memory-mapped, and an error can say how many bytes were missing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ConfigError, StoreError

_STALE_SECONDS = 24 * 3600
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}


class Entry(NamedTuple):
    """An object as it is listed. `modified`: seconds since 1970, by the clock of who keeps it."""

    name: str
    bytes: int
    modified: float


class Size(NamedTuple):
    objects: int
    bytes: int


def size_of(entries: Iterable[Entry]) -> Size:
    """Their number and bytes."""
    sizes = [entry.bytes for entry in entries]
    return Size(len(sizes), sum(sizes))


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
        for name in self.listed(folder):
            with contextlib.suppress(FileNotFoundError):
                status = self.path(name).stat()
                found.append(Entry(name, status.st_size, status.st_mtime))
        yield from sorted(found)

    def listed(self, folder: str = "") -> Iterator[str]:
        """The names alone, in any order: no file is asked for its size."""
        for parent, folders, files in os.walk(self.root / folder):
            folders[:] = [f for f in folders if not f.startswith(".")]
            below = Path(parent).relative_to(self.root).as_posix()
            prefix = "" if below == "." else f"{below}/"
            yield from [prefix + file for file in files if file[0] != "."]

    def state_of(self, folder: str) -> int:
        """A number that changes when a name appears in a folder or goes; 0 where there is no such folder."""
        try:
            return os.stat(self.root / folder).st_mtime_ns
        except FileNotFoundError:
            return 0

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
