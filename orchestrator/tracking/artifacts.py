"""Artifact addresses of runs. The records may be untrusted, so only addresses that addresses.py allows are used."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ctvr.orchestrator.addresses import is_allowed, origin_of, require_allowed
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.tracking.internals import LOCATIONS
from ctvr.orchestrator.tracking.messages import Message
from ctvr.orchestrator.tracking.outbox import locked
from ctvr.orchestrator.tracking.relocate import follow_move
from ctvr.orchestrator.tracking.run_record import artifact_folder
from ctvr.orchestrator.tracking.sqlite_records import SqliteRecords

if TYPE_CHECKING:
    from mlflow import MlflowClient


class ArtifactAddresses:
    """Artifact addresses of the runs of one MLflow store, each checked once."""

    def __init__(self, uri: str, runs: Path, client: Callable[[], MlflowClient]) -> None:
        self.uri, self.runs, self._client = uri, runs, client
        self._known: dict[str, str] = {}  # run id -> allowed address

    def of(self, run_id: str) -> str:
        """Return the address of a run's artifacts.

        Raises:
            ConfigError: if this command may not use the address.
        """
        if run_id not in self._known:
            address = self._recorded(run_id)
            file = Path(self.uri.removeprefix("sqlite:///"))
            if file.parent == self.runs and not is_allowed(address, self.runs):  # the folder may have been moved
                with suppress(OSError, ConfigError), locked(file.with_name(f"{file.name}.lock")):
                    follow_move(file)
                address = self._recorded(run_id)
            self.require(address, f"run {run_id[:8]}")
            self._known[run_id] = address
        return self._known[run_id]

    def _recorded(self, run_id: str) -> str:
        if (records := SqliteRecords.of(self.uri)) is not None:
            with suppress(sqlite3.Error):  # MLflow's client reports the reason
                return records.artifacts(run_id)
        return str(self._client().get_run(run_id).info.artifact_uri)

    def require(self, address: str, what: str) -> None:
        """Check that this command may use an artifact address from the records.

        A server that the user names may choose any folder or bucket for artifacts, but not another web server.

        Raises:
            ConfigError: one line that names the record, the host and the option.
        """
        is_web = re.match(r"(https?|mlflow-artifacts)://", address, re.IGNORECASE)
        if self.uri.startswith("sqlite:") or is_web:
            require_allowed(address, f"{what} in {redact(self.uri)}", self.runs, self.uri)

    def require_all(self) -> None:
        """Check the addresses of all hosts in a local database, because MLflow's pages open these addresses.

        Raises:
            ConfigError: for an address that this command may not use.
        """
        with closing(sqlite3.connect(self.uri.removeprefix("sqlite:///"))) as database:
            for table, column in LOCATIONS:
                for (address,) in database.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} <> ''"):
                    if origin_of(str(address)):
                        self.require(str(address), f"{table}.{column}")

    def local_folder(self, run_id: str) -> Path | None:
        """Return the artifact folder of a run, if it is on this machine and its record is in a local file."""
        if SqliteRecords.of(self.uri) is None:
            return None
        return artifact_folder(run_id, self.of(run_id), self.runs, self.uri)

    def check_target(self, run_id: str, message: Message) -> None:
        """Check that a message does not write files to another host, or through a link out of the artifact folder.

        Raises:
            ConfigError: for such a message; the error names the run and the artifact.
        """
        folder = artifact_folder(run_id, self.of(run_id), self.runs, self.uri)
        if folder is None:
            return
        if message["op"] == "files":
            source = Path(message["path"])
            below = [each.relative_to(source) for each in source.rglob("*")] if source.is_dir() else [source.name]
            names = [str(Path(message["into"], each)) for each in below]
        else:
            names = [f"{message['name']}.png" if message["op"] == "heatmap" else message["name"]]
        for name in names:
            require_allowed(str(folder / name), f"run {run_id[:8]}: artifact {name}", self.runs, self.uri)
