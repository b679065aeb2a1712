"""A runs folder that was moved or copied: its database says where its files lay, and is told where they lie now."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tracking.database import remedy
from ctvr.orchestrator.tracking.internals import LOCATIONS
from ctvr.orchestrator.tracking.messages import folder_of

log = logging.getLogger(__name__)


def follow_move(database: Path) -> int:
    """Let the addresses of artifacts in a database begin with the folder that it lies in; returns how many changed.

    Only addresses below the artifact folder that we made (`<runs>/artifacts`, sending.py) are changed, so that those
    of a server, or of experiments of others, stay. Nobody else may be writing, or the caller holds the lock.

    Raises:
        ConfigError: if the database cannot be read or written.
    """
    try:
        return _follow(database)
    except sqlite3.Error as error:  # a disk that is full, a limit of file sizes, another process's lock
        raise ConfigError(f"tracking {database}: {error}. {remedy(error)}.") from error


def _follow(database: Path) -> int:
    here = (database.resolve().parent / "artifacts").as_uri()
    changed = 0
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        rows = connection.execute("SELECT name, artifact_location FROM experiments").fetchall()
        ends = {
            location: f"/artifacts/{quote(folder_of(str(name)))}"
            for name, location in rows
            if str(location).startswith("file:///")
        }
        roots = {place.removesuffix(end) + "/artifacts" for place, end in ends.items() if place.endswith(end)}
        for former in roots - {here}:
            for table, column in LOCATIONS:
                changed += connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (here, len(former) + 1, len(former) + 1, f"{former}/"),
                ).rowcount
    if changed:
        log.info("tracking: the runs folder was moved here; %d addresses of its files follow", changed)
    return changed
