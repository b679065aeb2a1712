"""Read access to records in a folder that cannot be written (read-only, or a full disk), through a temporary copy."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

from ctvr.orchestrator.errors import NOT_WRITABLE, ConfigError, os_error_text
from ctvr.orchestrator.processes import lock_faults, lock_faults_in
from ctvr.orchestrator.tracking.database import WAIT_SECONDS, remedy
from ctvr.orchestrator.tracking.outbox import locked
from ctvr.orchestrator.tracking.relocate import follow_move
from ctvr.orchestrator.tracking.server import check, create_database
from ctvr.orchestrator.tracking.sqlite_records import SqliteRecords

_OF_SQLITE = ("readonly", "disk is full", "disk i/o error", "unable to open")  # texts in SQLite's errors
_LOGS = ("-journal", "-wal", "-shm")  # files of a writer that was stopped, without which a copy would be damaged


def readable_uri(uri: str) -> str:
    """Return the URI for reading existing records: `uri`, or the URI of a temporary copy.

    A copy is read if another MLflow version wrote the database, or if the folder is read-only or lacks file locks.
    After a move of the folder, the artifact addresses are updated in the database or in the copy.

    Raises:
        ConfigError: if the records cannot be read.
    """
    check(uri, writes=False)
    if not uri.startswith("sqlite:///"):
        return uri
    file = Path(uri.removeprefix("sqlite:///"))
    if not _prepare_in_place(file):
        state = file.stat()
        return f"sqlite:///{_make_copy(file, state.st_mtime_ns, state.st_size).name}/{file.name}"
    return uri


def _prepare_in_place(file: Path) -> bool:
    """Update the addresses in a database; return False if it must be read from a copy."""
    try:
        with locked(file.with_name(f"{file.name}.lock")) as lock:
            if "fcntl" in lock_faults(lock) or SqliteRecords.of(f"sqlite:///{file}") is None:
                return False
            follow_move(file)
            return True
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
    except ConfigError as error:
        if not any(text in str(error.__cause__).lower() for text in _OF_SQLITE):
            raise
    return False


@cache
def _make_copy(file: Path, changed: int, size: int) -> tempfile.TemporaryDirectory[str]:
    """Return a folder with an up-to-date copy of a database, which is made again if time or size change.

    Args:
        file: the database.
        changed: modification time of the database in ns.
        size: size of the database in bytes.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="ctvr-records-")
        copy = Path(folder.name) / file.name
        if fault := lock_faults_in(copy.parent).get("fcntl"):  # SQLite would wait for two minutes
            raise ConfigError(
                f"neither this folder nor {file.parent} supports file locks ({fault.strerror})",
                f"TMPDIR {tempfile.gettempdir()}",
                remedy="Set TMPDIR to a folder on another disk.",
            )
        _copy(file, copy)
    except OSError as error:
        raise ConfigError(
            f"tracking {file}: its folder cannot be written, and a copy of {size} bytes cannot be made: "
            f"{os_error_text(error)} TMPDIR names the folder for copies."
        ) from error
    try:
        if SqliteRecords.of(f"sqlite:///{copy}") is None:
            create_database(f"sqlite:///{copy}", is_copy=True)
        follow_move(copy, file.parent)
    except ConfigError as error:
        raise error.at(f"tracking {file}") from error
    return folder


def _has_locks(file: Path) -> bool:
    with suppress(OSError), file.with_name(f"{file.name}.lock").open("ab") as lock:  # fails if read-only
        return "fcntl" not in lock_faults(lock)
    return True


def _copy(file: Path, copy: Path) -> None:
    try:
        if not _has_locks(file):
            raise sqlite3.OperationalError("no file locks")
        source = sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, timeout=WAIT_SECONDS)
        with closing(source), closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise ConfigError(error, f"tracking {file}", remedy=f"{remedy(error)}.") from error
    # The change of a writer that was stopped must be undone or completed, which SQLite can only do in the copy
    copy.unlink(missing_ok=True)
    shutil.copyfile(file, copy)
    for log in _LOGS:
        with suppress(FileNotFoundError):
            shutil.copyfile(file.with_name(file.name + log), copy.with_name(copy.name + log))
