"""The lock of a sweep's driver: of two drivers of one sweep the second is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError


@contextmanager
def only_driver(folder: Path, name: str) -> Iterator[None]:
    """Hold `driver.lock` in a sweep's folder. The system gives it back when the process ends, however it ends.

    It holds on this machine, and between machines where their file system carries locks (NFS 4, Lustre with flock). A
    file system without locks lets every driver in.

    Raises:
        ConfigError: if another driver holds it, with its host and process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "driver.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise ConfigError(
                    f"sweep {name}: {_holder(descriptor)} drives it already. Wait for that process, or end it, before "
                    "you write the command again."
                ) from None
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        held = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(held['pid'])} on {held['host']}"
    except (ValueError, KeyError, TypeError):  # it writes this very moment
        return "another process"
