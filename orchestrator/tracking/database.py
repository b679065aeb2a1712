"""The SQLite database of a runs folder: atomic creation, repair of an incomplete file, and waiting for its lock."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError

log = logging.getLogger(__name__)

WAIT_SECONDS = 120.0  # maximum wait for a database that another process has locked
UNFINISHED = ".unfinished"  # suffix of a kept incomplete database
_VERSION, _MIGRATING = "alembic_version", "_alembic_tmp_"  # a table, and a prefix of tables, of MLflow's migrations
_OF_MLFLOW = {_VERSION, "experiments"}  # tables that MLflow creates early
_HELD = ("experiments", "runs", "registered_models")  # in every complete or used database, one of them has a row


def ensure_whole(file: Path, fill: Callable[[str], object]) -> None:
    """Create `file` if it is missing, empty or incomplete; if the process is killed, the old file is kept.

    MLflow creates about 60 tables in a few hundred steps, each of which SQLite commits, and cannot resume half-way.
    So `fill` creates them in another file, which is renamed when it is on disk. The caller must hold the lock.

    Args:
        file: the database.
        fill: creates the tables of MLflow at a given URI.
    """
    half = is_half_made(file)
    if file.exists() and file.stat().st_size and not half:
        return
    new = file.with_name(f"{file.name}.new")
    try:
        _remove(new)
        fill(f"sqlite:///{new}")
        if half:
            log.warning("tracking: %s is an incomplete database without runs; it is created again", file)
            os.replace(file, file.with_name(file.name + UNFINISHED))
        _publish(new, file)
    finally:
        _remove(new)


def _publish(source: Path, target: Path) -> None:
    """Copy a database, which MLflow may still have open, and rename the copy once it is on disk."""
    copy = source.with_name(f"{source.name}.copy")
    with closing(sqlite3.connect(source)) as of, closing(sqlite3.connect(copy)) as to:
        of.backup(to)
    with copy.open("rb+") as file:
        os.fsync(file.fileno())
    for left in ("-journal", "-wal", "-shm"):  # of the previous database; SQLite would apply them to the new one
        target.with_name(target.name + left).unlink(missing_ok=True)
    os.replace(copy, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(new: Path) -> None:
    for left in new.parent.glob(f"{new.name}*"):
        left.unlink(missing_ok=True)


def upgrade(file: Path, migrate: Callable[[str], object], version: str) -> Path:
    """Upgrade a copy of a database, then replace the database with it; return the path of the previous file.

    Args:
        file: the database; the caller holds its lock.
        migrate: upgrades the database at a given URI.
        version: version of MLflow, which becomes part of the previous file's name.
    """
    new = file.with_name(f"{file.name}.new")
    names = (
        file.with_name(f"{file.name}.before-{version}{suffix}") for suffix in ("", *map("-{}".format, range(2, 99)))
    )
    kept = next(name for name in names if not name.exists())
    try:
        _remove(new)
        _publish(file, new)
        migrate(f"sqlite:///{new}")
        _publish(file, kept)
        _publish(new, file)
    finally:
        _remove(new)
    return kept


def revision_of(file: Path, seconds: float) -> str | None:
    """Return the revision of a database's schema; None if MLflow has not created all tables, or it cannot be opened.

    Args:
        file: the database, which need not exist.
        seconds: maximum wait for another process's lock.

    Raises:
        ConfigError: if it is not a database, or the database of another program.
    """
    if not file.is_file() or not file.stat().st_size:
        return None
    try:
        with closing(sqlite3.connect(file, timeout=seconds)) as database:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found = database.execute(f"SELECT * FROM {_VERSION}").fetchone() if _VERSION in names else None
    except sqlite3.OperationalError:  # locked, or unreadable: MLflow's client reports the reason
        return None
    except sqlite3.DatabaseError as error:
        raise ConfigError(error, f"tracking {file}", remedy=f"{remedy(error)}.") from error
    if names - {_VERSION} and not any(name == "experiments" or name.startswith(_MIGRATING) for name in names):
        tables = ", ".join(sorted(names)[:3])
        raise ConfigError(
            f"is not a database of MLflow (tables {tables})",
            f"tracking {file}",
            remedy="Move it away, or choose another folder with --runs.",
        )
    return str(found[0]) if found and not is_half_made(file) else None


def is_half_made(file: Path) -> bool:
    """Return whether MLflow was stopped while it created its tables; it adds a first experiment when it has finished.

    False for an unreadable file or a file with other content, which is left unchanged.
    """
    if not file.is_file() or not file.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(file, timeout=WAIT_SECONDS)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            begun = names & _OF_MLFLOW or any(name.startswith(_MIGRATING) for name in names)
            held = [name for name in _HELD if name in names]
            rows = [connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in held]
    except sqlite3.Error:
        return False
    return bool(begun) and not any(rows)


def await_lock(file: Path, seconds: float = WAIT_SECONDS) -> None:
    """Wait until no other process has the database `file` locked; log the wait.

    Raises:
        ConfigError: if the file is still locked after `seconds`.
    """
    if not file.exists():
        return
    end, is_reported = time.monotonic() + seconds, False
    while _is_locked(file):
        if not is_reported:
            log.warning("tracking: another process has locked %s; waiting, at most %.0f s", file, seconds)
            is_reported = True
        if time.monotonic() > end:
            raise ConfigError(
                f"tracking {file}: another process has kept it locked for {seconds:.0f} s. Wait for that process or "
                "end it (`fuser` or `lsof` with the file's name finds it), then run the same command again."
            )
        time.sleep(0.2)


def _is_locked(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=0.5, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return "locked" in str(error)  # MLflow reports all other errors
    return False


def remedy(error: Exception) -> str:
    """Return the remedy for a database that MLflow or SQLite cannot use."""
    text = str(error).lower()
    if "locked" in text:
        return "Another process has locked it. Wait for that process, then run the same command again"
    if "disk" in text or "too large" in text or "full" in text:
        return "Free some space (`df`, `quota`, `ulimit -f` show the limits), or choose another folder with --runs"
    return "Move the file away, or repair it"
