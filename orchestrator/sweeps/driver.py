"""Lock of a sweep's driver, which refuses a second driver of the same sweep."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.processes import hold_lock


@contextmanager
def only_driver(folder: Path, name: str) -> Iterator[None]:
    """Context manager that holds `driver.lock` in a sweep's folder. The system releases it when the process ends.

    The lock also works between machines if the file system supports locks (NFS 4, Lustre with flock) or lacks them
    (`hold_lock`). If a sweep is refused before it has written a file, its new folders are removed.

    Raises:
        ConfigError: if another driver holds the lock; the message contains its host and process.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with ExitStack() as held:
        file = _lock(held, folder, name)
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
        file.flush()
        try:
            yield
        except ConfigError:
            if missing and [each.name for each in folder.iterdir()] == ["driver.lock"]:
                (folder / "driver.lock").unlink()
                with suppress(OSError):  # another process now uses the folder
                    for each in missing:
                        each.rmdir()
            raise


def _lock(held: ExitStack, folder: Path, name: str) -> IO[bytes]:
    """Create and lock the lock file; repeat this if another driver that was refused has removed the file."""
    path = folder / "driver.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), ExitStack() as tried:  # the folder or the file was removed
            try:
                file = tried.enter_context(hold_lock(path, wait=False))
            except BlockingIOError:
                raise ConfigError(
                    f"sweep {name}: {_holder(path)} already runs it. Wait for that process, or stop it, "
                    "before you run the command again."
                ) from None
            except OSError as error:
                if path.exists() and not path.is_file():
                    raise ConfigError("is not a file", path, remedy="Move it away and run again.") from error
                raise
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                held.enter_context(tried.pop_all())
                return file


def _holder(path: Path) -> str:
    try:
        held = json.loads(path.read_bytes()[:1000])
        return f"process {int(held['pid'])} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):  # being written, or damaged
        return "another process"
