"""Lock of a sweep's driver, which refuses a second driver of the same sweep."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError


@contextmanager
def only_driver(folder: Path, name: str) -> Iterator[None]:
    """Hold `driver.lock` in a sweep's folder. The system releases it when the process ends.

    The lock also works between machines if the file system supports it (NFS 4, Lustre with flock). Without such support
    every driver is admitted. A sweep that is refused before it has written anything leaves no folder.

    Raises:
        ConfigError: if another driver holds it; the message contains its host and process.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    descriptor = _lock(folder, name)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
        yield
    except ConfigError:
        if missing and [each.name for each in folder.iterdir()] == ["driver.lock"]:
            (folder / "driver.lock").unlink()
            with suppress(OSError):  # another process now uses the folder
                for each in missing:
                    each.rmdir()
        raise
    finally:
        os.close(descriptor)


def _lock(folder: Path, name: str) -> int:
    """Return the descriptor of the locked file. Another driver that is refused may remove file or folder meanwhile."""
    path = folder / "driver.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the folder was removed
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("is not a file", path, remedy="Move it away and run again.")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise ConfigError(
                        f"sweep {name}: {_holder(descriptor)} already runs it. Wait for that process, or stop it, "
                        "before you run the command again."
                    ) from None
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                    raise
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        held = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(held['pid'])} on {held['host']}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # the file is being written, or is damaged
        return "another process"
