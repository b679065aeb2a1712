"""Runs read from MLflow's SQLite file without MLflow, whose import takes seconds.

Only a file with the schema `internals.SCHEMA` is read here. Any other file, and a server, is left to MLflow's client.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tracking.database import WAIT_SECONDS
from ctvr.orchestrator.tracking.internals import SCHEMA

Point = tuple[int, float]  # step and value of a metric
NUMBERS: dict[str, Callable[[str], float]] = {  # numeric parameters and tags that tables use
    "seed": int,
    "ctvr.reused_tasks": int,
    "ctvr.place": int,
    "ctvr.search_seconds": float,
    "ctvr.best": float,
}
KEYS = ("ctvr.commits", "ctvr.result")  # tags that name objects of the store
_KEY = re.compile(r"(?!.*\.\.)(?:[a-z0-9_-][a-z0-9_.-]{0,127})?")


@dataclass(frozen=True)
class StoredRun:
    """One run as MLflow stores it."""

    run_id: str
    name: str
    status: str
    started: int  # milliseconds since 1970
    artifacts: str  # URI of the run's artifact folder
    params: dict[str, str]
    tags: dict[str, str]
    latest: dict[str, Point]  # last point of each metric

    def check(self) -> None:
        """Check the types of all values, because the file may have been edited or damaged.

        Raises:
            ConfigError: for the first value with a wrong type.
        """
        own = {"run_uuid": self.run_id, "name": self.name, "status": self.status, "artifact_uri": self.artifacts}
        for table, texts in (("runs", own), ("params", self.params), ("tags", self.tags)):
            for key, value in texts.items():
                if type(key) is not str or type(value) is not str:
                    raise self._wrong(f"{table}, {key}", value)
        if type(self.started) is not int:
            raise self._wrong("runs, start_time", self.started)
        for name, kind in NUMBERS.items():
            value = self.params.get(name, self.tags.get(name, "0"))
            try:
                kind(value)
            except ValueError as error:
                raise self._wrong(name, value) from error
        for name in KEYS:
            if not _KEY.fullmatch(self.tags.get(name, "")):
                raise self._wrong(name, self.tags[name])
        for key, point in self.latest.items():
            self.check_point(key, *point)

    def check_point(self, key: str, step: object, value: object) -> None:
        """Check the types of a metric's key, step and value; raise ConfigError for a wrong type."""
        if type(key) is not str or type(step) is not int or type(value) not in (float, int):
            raise self._wrong(f"metric {key} at step {step}", value)

    def _wrong(self, what: str, value: object) -> ConfigError:
        return ConfigError(
            f"tracking: run {self.run_id}: {what}: {value!r:.60} is not a valid value, so the record is damaged. "
            "Restore mlflow.db from a copy, or move it away and run `ctvr runs sync --rebuild`, which recreates it "
            "from the event log."
        )


class SqliteRecords:
    """Runs of one SQLite file of MLflow; methods raise `sqlite3.Error` if it cannot be read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @classmethod
    def of(cls, uri: str) -> SqliteRecords | None:
        """Return the records at a tracking URI; None if MLflow's client must read them."""
        file = Path(uri.removeprefix("sqlite:///"))
        if not uri.startswith("sqlite:///") or not file.is_file():
            return None
        try:
            with closing(sqlite3.connect(file, timeout=WAIT_SECONDS)) as connection:
                found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
                begun = connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone()
        except sqlite3.Error:  # MLflow's client reports the reason
            return None
        return cls(file) if found == [(SCHEMA,)] and begun else None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=WAIT_SECONDS)
        connection.text_factory = lambda content: content.decode(errors="replace")  # the file may be damaged or edited
        return connection

    def search(self, stream: str | None, tags: Mapping[str, str], status: str | None = None) -> list[StoredRun]:
        """Return the runs of a stream, or of all streams, with these tags and, if given, this status, oldest first."""
        wanted, values = ["runs.lifecycle_stage = 'active'"], list[str]()
        for condition, value in (("experiments.name = ?", stream), ("runs.status = ?", status)):
            if value is not None:
                wanted.append(condition)
                values.append(value)
        if stream is None:
            wanted.append("experiments.lifecycle_stage = 'active'")
        for pair in tags.items():
            wanted.append("EXISTS (SELECT 1 FROM tags WHERE run_uuid = runs.run_uuid AND key = ? AND value = ?)")
            values += pair
        query = (
            "SELECT run_uuid, runs.name, status, start_time, artifact_uri FROM runs JOIN experiments USING "
            f"(experiment_id) WHERE {' AND '.join(wanted)} ORDER BY start_time IS NULL, start_time, run_uuid"
        )
        with closing(self._connect()) as connection:
            connection.execute("BEGIN")  # one transaction: a consistent snapshot
            return [self._with_details(connection, *row) for row in connection.execute(query, values).fetchall()]

    def _with_details(
        self,
        connection: sqlite3.Connection,
        run_id: str,
        name: str | None,
        status: str | None,
        started: int | None,
        artifacts: str | None,
    ) -> StoredRun:
        params, tags = (
            dict(connection.execute(f"SELECT key, COALESCE(value, '') FROM {table} WHERE run_uuid = ?", (run_id,)))
            for table in ("params", "tags")
        )
        last = connection.execute("SELECT key, step, value, is_nan FROM latest_metrics WHERE run_uuid = ?", (run_id,))
        latest = {key: (step, math.nan if is_nan else value) for key, step, value, is_nan in last}
        return StoredRun(run_id, name or "", status or "", started or 0, artifacts or "", params, tags, latest)

    def histories(self, run_id: str) -> dict[str, list[Point]]:
        """Return (step, value) of every value of each metric, in the order of their times."""
        query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step, value"
        found: dict[str, list[Point]] = {}
        with closing(self._connect()) as connection:
            for key, step, value, is_nan in connection.execute(query, (run_id,)):
                found.setdefault(key, []).append((step, math.nan if is_nan else value))
        return found

    def artifacts(self, run_id: str) -> str:
        """Return the URI of a run's artifact folder; empty for an unknown run."""
        with closing(self._connect()) as connection:
            row = connection.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
        return str(row[0]) if row else ""
