"""Reading of recorded runs from MLflow. Damaged runs are skipped with a warning; errors are one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ctvr.orchestrator.console import printable
from ctvr.orchestrator.errors import ConfigError, CtvrError, StoreError
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.tracking.mlflow_ui import NAME
from ctvr.orchestrator.tracking.mlflow_writer import Sender
from ctvr.orchestrator.tracking.run_record import Histories, RunRecord, Texts, artifact_folder
from ctvr.orchestrator.tracking.server import reason, remedy_for
from ctvr.orchestrator.tracking.sqlite_records import Point, StoredRun

log = logging.getLogger(__name__)


class RunReader:
    """Reader of the runs of one MLflow store."""

    def __init__(self, uri: str, sender: Sender) -> None:
        self.uri, self._sender = uri, sender
        self._left_out: set[str] = set()  # ids of runs with a damaged record

    def find(
        self, stream: str | None, tags: Mapping[str, str], status: str | None = None, strict: bool = False
    ) -> list[RunRecord]:
        """Return the runs of a stream, or of all streams, with these tags and this status, oldest first.

        A run with a damaged record is named in a warning and left out; with `strict` it is an error.

        Raises:
            ConfigError: if the file cannot be read, or, with `strict`, for a damaged record.
            StoreError: if the server does not respond.
        """
        with self._in_one_line():
            found = self._sender.search(stream, tags, status)
        records = []
        for run in found:
            try:
                records.append(self._record(run))
            except ConfigError as error:
                if strict:
                    raise
                if run.run_id not in self._left_out:
                    log.warning("%s This run is left out.", error)
                self._left_out.add(run.run_id)
        return records

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """Convert errors of MLflow and SQLite to a ConfigError (database) or a StoreError (server) of one line."""
        try:
            yield
        except CtvrError:
            raise
        except Exception as error:
            ours = ConfigError if self.uri.startswith("sqlite:") else StoreError
            raise ours(f"tracking {redact(self.uri)}: {reason(error)}. {remedy_for(error, self.uri)}") from error

    def _record(self, run: StoredRun) -> RunRecord:
        known: dict[str, list[Point]] = {}

        def read(key: str) -> list[Point]:
            if key not in known:
                with self._in_one_line():
                    known.update(self._sender.histories(run.run_id, key))
            points = dict(known.get(key, []))
            for step, value in points.items():
                run.check_point(key, step, value)
            return sorted(points.items())

        run.check()
        settings = Texts(run.params, run.run_id[:8], "parameter")
        tags = Texts(run.tags, run.run_id[:8], "tag")
        name, metrics = printable(tags.get(NAME) or run.name), Histories(run.latest, read)
        folder = artifact_folder(run.run_id, run.artifacts, self._sender.artifacts.runs, self.uri)
        return RunRecord(run.run_id, name, settings, metrics, tags, run.status, run.artifacts, run.started, folder)
