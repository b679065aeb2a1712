"""The SQLite file of a runs folder: made aside and published whole, waited for while another process holds it."""

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

WAIT_SECONDS = 120.0  # how long a file that another process has locked is waited for
UNFINISHED = ".unfinished"  # the ending under which a half-made file is kept
_OF_MLFLOW = {"alembic_version", "experiments"}  # tables that MLflow makes among the first
_HELD = ("experiments", "runs", "registered_models")  # tables with a row in every file that was ever finished or used


def ensure_whole(file: Path, fill: Callable[[str], object]) -> None:
    """Make `file` where it is missing, empty or half-made; a process that is killed meanwhile leaves it as it was.

    MLflow makes about 60 tables in a few hundred steps, each of which SQLite commits. It cannot go on from the middle.
    So `fill` makes them in another file, which gets its name when it is on disk. The caller holds the lock.

    Args:
        file: the database.
        fill: makes the tables of MLflow at the URI that it is given.
    """
    half = is_half_made(file)
    if file.exists() and file.stat().st_size and not half:
        return
    new = file.with_name(f"{file.name}.new")
    try:
        _remove(new)
        fill(f"sqlite:///{new}")
        if half:
            log.warning("tracking: %s was made by halves; it holds no run and is made again", file)
            os.replace(file, file.with_name(file.name + UNFINISHED))
        _publish(new, file)
    finally:
        _remove(new)


def _publish(source: Path, target: Path) -> None:
    """Copy a database, which MLflow may still have open, and give the copy its name once it is on disk."""
    copy = source.with_name(f"{source.name}.copy")
    with closing(sqlite3.connect(source)) as of, closing(sqlite3.connect(copy)) as to:
        of.backup(to)
    with copy.open("rb+") as file:
        os.fsync(file.fileno())
    for left in ("-journal", "-wal", "-shm"):  # of a file that is gone: SQLite would apply them to the new one
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


def is_half_made(file: Path) -> bool:
    """Whether MLflow began to make its tables and was stopped: it makes a first experiment when it has made them all.

    A file that holds anything else, or that cannot be read, is not half-made: it stays as it is.
    """
    if not file.is_file() or not file.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(file, timeout=WAIT_SECONDS)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            begun = names & _OF_MLFLOW or any(name.startswith("_alembic_tmp_") for name in names)
            held = [name for name in _HELD if name in names]
            rows = [connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in held]
    except sqlite3.Error:
        return False
    return bool(begun) and not any(rows)


def await_lock(file: Path, seconds: float = WAIT_SECONDS) -> None:
    """Wait while another process holds `file`, and say so.

    Raises:
        ConfigError: if it is held longer than that.
    """
    if not file.exists():
        return
    end, told = time.monotonic() + seconds, False
    while _is_locked(file):
        if not told:
            log.warning("tracking: another process has locked %s; waiting, at most %.0f s", file, seconds)
            told = True
        if time.monotonic() > end:
            raise ConfigError(
                f"tracking {file}: another process has kept it locked for {seconds:.0f} s. Wait for that process or "
                "end it (`fuser` or `lsof` and the file's name show it), then write the same command again."
            )
        time.sleep(0.2)


def _is_locked(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=0.5, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return "locked" in str(error)  # of anything else MLflow says what it is
    return False


def remedy(error: Exception) -> str:
    """Say what to do about a file that MLflow or SQLite does not take."""
    text = str(error).lower()
    if "locked" in text:
        return "Another process holds it: wait for that, then write the same command again"
    if "disk" in text or "too large" in text or "full" in text:
        return "Free some space (`df`, `quota`, `ulimit -f` show the limits), or choose another folder with --runs"
    return "Move the file away, or mend it"
