"""Relocation of a moved or copied runs folder: updates the file addresses in its database."""

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


def follow_move(database: Path, folder: Path | None = None) -> int:
    """Update the artifact addresses in a database to its folder, or to `folder`; return the number of changes.

    Only addresses below our artifact folder (`<runs>/artifacts`, mlflow_writer.py) change. Addresses of a server or of
    third-party experiments are kept. The caller must hold the lock if other processes can write.

    Args:
        database: the file.
        folder: the runs folder, if `database` is a temporary copy (default: the folder of `database`).

    Raises:
        ConfigError: if the database cannot be read or written.
    """
    try:
        changed = _update_addresses(database, folder or database.parent)
    except sqlite3.Error as error:  # a full disk, a file size limit, or another process's lock
        raise ConfigError(error, f"tracking {database}", remedy=f"{remedy(error)}.") from error
    if changed and folder is None:
        log.info("tracking: the runs folder was moved; %d file addresses were updated", changed)
    return changed


def _update_addresses(database: Path, folder: Path) -> int:
    here = (folder.resolve() / "artifacts").as_uri()
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
    return changed
