"""Sending of messages to MLflow, one method per operation. Every operation is idempotent.

An existing (metric, step) is not stored again. A parameter keeps its first value. An existing run with the same
identity is continued. Errors are raised: the `OutboxSender` (outbox.py) handles them.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.errors import BadRecord, ConfigError
from ctvr.orchestrator.tracking.artifacts import ArtifactAddresses
from ctvr.orchestrator.tracking.event_log import EventLog
from ctvr.orchestrator.tracking.internals import PARENT, latest_points
from ctvr.orchestrator.tracking.messages import IDENTITY, Message, check, copy_files, folder_of
from ctvr.orchestrator.tracking.mlflow_ui import NAME, OUR_VIEW, experiment_tags, our_view
from ctvr.orchestrator.tracking.outbox import Outbox
from ctvr.orchestrator.tracking.run_record import MAX_PARAM, MAX_TAG, metric_name, quoted, same, short
from ctvr.orchestrator.tracking.server import new_client
from ctvr.orchestrator.tracking.sqlite_records import Point, SqliteRecords, StoredRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

MAX_METRICS, MAX_PARAMS = 1000, 100  # MLflow's limits for one batch
_FILES = ("files", "text", "heatmap")  # operations that write into the artifact folder
REFUSED = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"}  # permanent errors


class Sender:
    """Sends messages to the MLflow store at `uri`; its methods raise MLflow's errors."""

    def __init__(self, uri: str, outbox: Outbox, event_log: EventLog) -> None:
        self.uri, self.outbox, self.event_log = uri, outbox, event_log
        self._runs = outbox.folder.parent
        self.artifacts = ArtifactAddresses(uri, self._runs, lambda: self.client)
        self.opened: dict[str, str] = {}  # offline id -> run id
        self._unopened: set[str] = set()  # offline ids whose opening was refused permanently
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}
        self._stored: dict[str, dict[str, dict[int, float] | None]] = {}  # run -> key -> step -> value; None until read

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = new_client(self.uri)
        return self._client

    def send(self, run_id: str, message: Message) -> None:
        """Send one message to MLflow.

        Raises:
            BadRecord: if a field is missing or invalid, or names a location outside an artifact folder.
        """
        if message["op"] == "open":
            try:
                check(message)
                self._send_open(run_id, message)
            except Exception as error:
                if is_refusal(error):
                    self._unopened.add(run_id)
                raise
            return
        check(message)
        real = self.real(run_id)
        if message["op"] in _FILES:
            self.artifacts.check_target(real, message)
        try:
            getattr(self, f"_send_{message['op']}")(real, message)
        except Exception:
            self._stored.pop(real, None)  # the batch may have been stored before the error
            raise

    def real(self, run_id: str) -> str:
        """Return MLflow's id of a run.

        Raises:
            LookupError: if the run was opened offline and has not been sent yet.
            BadRecord: if it cannot be sent, because the record that opens it is lost, damaged or refused.
        """
        real = self.opened.get(run_id) or self.outbox.server_id(run_id)
        if real is None:
            if run_id in self._unopened or not any(each["op"] == "open" for each in self.outbox.read(run_id)[0]):
                raise BadRecord(
                    f"run {run_id} was opened offline, and the record that opens it is missing; "
                    "`ctvr runs sync --rebuild` restores it"
                )
            raise LookupError(f"run {run_id} was opened offline and has not been sent yet (`ctvr runs sync`)")
        return real

    def experiment(self, stream: str) -> str:
        """Return the id of the stream's experiment, created if it is missing; safe for concurrent processes."""
        if stream not in self._experiments:
            found = self.client.get_experiment_by_name(stream)
            if found is None:
                found = self._create_experiment(stream)
            elif found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            self.artifacts.require(found.artifact_location or "", f"experiment {stream}")
            if found.tags.get(OUR_VIEW) != our_view():  # missing, or of an earlier version
                self.client.set_experiment_tag(found.experiment_id, OUR_VIEW, our_view())
            self._experiments[stream] = found.experiment_id
        return self._experiments[stream]

    def search(self, stream: str | None, tags: Mapping[str, str], status: str | None = None) -> list[StoredRun]:
        """Return runs with these tags and, if given, this status, oldest first. Reads a local file without MLflow."""
        if (records := SqliteRecords.of(self.uri)) is not None:
            with suppress(sqlite3.Error):  # MLflow's client reports the reason
                return records.search(stream, tags, status)
        return self._search_by_client(stream, tags, status)

    def _search_by_client(self, stream: str | None, tags: Mapping[str, str], status: str | None) -> list[StoredRun]:
        if stream is None:
            experiments = [e.experiment_id for e in self.client.search_experiments()]
        else:
            found = self.client.get_experiment_by_name(stream)
            experiments = [found.experiment_id] if found else []
        if not experiments:
            return []
        wanted = [f"tags.`{name}` = {quoted(value)}" for name, value in tags.items()]
        query = " and ".join([*wanted, *([f"attributes.status = {quoted(status)}"] if status else [])])
        token, runs = None, list[StoredRun]()
        while True:
            page = self.client.search_runs(
                experiments, query, max_results=1000, order_by=["attributes.start_time ASC"], page_token=token
            )
            for run in page:
                info, data = run.info, run.data
                of = (info.run_id, info.run_name or "", info.status, info.start_time or 0, info.artifact_uri or "")
                runs.append(StoredRun(*of, dict(data.params), dict(data.tags), latest_points(run)))
            token = page.token
            if not token:
                return runs

    def histories(self, run_id: str, key: str) -> dict[str, list[Point]]:
        """Map `key` to the (step, value) pairs of the metric, ordered by time.

        A local database returns every metric of the run, not only `key`.
        """
        if (records := SqliteRecords.of(self.uri)) is not None:
            with suppress(sqlite3.Error):
                return records.histories(run_id)
        return {key: [(metric.step, metric.value) for metric in self.client.get_metric_history(run_id, key)]}

    def register(self, run_id: str, name: str, aliases: Sequence[str]) -> str:
        """Register a run's artifact `model` as a version of the model `name`; return the number of the version."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        versions = self.client.search_model_versions(f"name = {quoted(name)} and run_id = '{run_id}'")
        if versions:
            version = str(versions[0].version)
        else:
            source = f"{self.artifacts.of(run_id)}/model"
            version = str(self.client.create_model_version(name, source, run_id, await_creation_for=0).version)
        for alias in aliases:
            self.client.set_registered_model_alias(name, alias, version)
        return version

    # --- one method per operation ---

    def _send_open(self, offline: str, message: Message) -> None:
        if message["parent"] == offline:
            raise BadRecord("names itself as its sweep")
        parent = message["parent"] and self.real(message["parent"])
        with self.event_log.hold_lock(offline):
            run_id = self._open_now(message["stream"], message["name"], message["settings"], parent, message["tags"])
        self.opened[offline] = run_id
        if self.outbox.has(offline):  # its other messages need this id
            self.outbox.set_server_id(offline, run_id)

    def _open_now(
        self, stream: str, name: str, settings: dict[str, str], parent: str | None, tags: dict[str, str]
    ) -> str:
        run_id = self._find(stream, parent, tags)
        known = run_id is not None
        if run_id is not None:
            self.client.update_run(run_id, status="RUNNING")
        else:
            full = {**tags, "ctvr.stream": stream, **({PARENT: parent} if parent else {})}
            if parent and "ctvr.sweep" not in full:
                full["ctvr.sweep"] = self.client.get_run(parent).data.tags.get("ctvr.sweep", "")
            full = {key: short(value, MAX_TAG) for key, value in full.items()}
            run_id = self.client.create_run(self.experiment(stream), tags=full, run_name=name).info.run_id
            self._stored[run_id] = {}
        self._send_settings(run_id, {"values": settings})
        if known:
            self._send_tags(run_id, {"values": tags})
        return run_id

    def _find(self, stream: str, parent: str | None, tags: Mapping[str, str]) -> str | None:
        """Return the id of the run with the identity in `tags` and this parent, or None."""
        wanted = {name: tags[name] for name in ("ctvr.kind", IDENTITY)} | ({PARENT: parent} if parent else {})
        found = (run.run_id for run in self.search(stream, wanted) if parent or PARENT not in run.tags)
        return next(found, None)

    def _create_experiment(self, stream: str) -> Any:
        from mlflow.exceptions import MlflowException

        where = None
        if not self.uri.startswith(("http://", "https://")):  # a server chooses its own location
            runs = Path(self.uri.removeprefix("sqlite:///")).parent if self.uri.startswith("sqlite:") else self._runs
            where = (runs.resolve() / "artifacts" / folder_of(stream)).as_uri()
        try:
            self.client.create_experiment(stream, artifact_location=where, tags=experiment_tags(stream))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process has created it first
                raise
        return self.client.get_experiment_by_name(stream)

    def _send_settings(self, run_id: str, message: Message) -> None:
        from mlflow.entities import Param

        old = self.client.get_run(run_id).data.params
        new = {metric_name(name): short(text, MAX_PARAM) for name, text in message["values"].items()}
        changed = sorted(name for name in new if name in old and old[name] != new[name])
        if changed:
            log.warning("tracking: run %s keeps its first value of %s", run_id, ", ".join(changed))
            self._send_tags(run_id, {"values": {"ctvr.changed": ", ".join(changed)}})
        fresh = [Param(name, text) for name, text in new.items() if name not in old]
        for start in range(0, len(fresh), MAX_PARAMS):
            self.client.log_batch(run_id, params=fresh[start : start + MAX_PARAMS])

    def _send_tags(self, run_id: str, message: Message) -> None:
        from mlflow.entities import RunTag

        tags = [RunTag(name, short(text, MAX_TAG)) for name, text in message["values"].items()]
        for start in range(0, len(tags), MAX_PARAMS):
            self.client.log_batch(run_id, tags=tags[start : start + MAX_PARAMS])

    def _send_metrics(self, run_id: str, message: Message) -> None:
        from mlflow.entities import Metric

        fresh = []
        for step, key, value in message["values"]:
            known = self._history(run_id, key)
            if step not in known:
                known[step] = value
                fresh.append(Metric(key, value, message["time"], step))
            elif not same(known[step], value):
                log.warning(
                    "tracking: run %s has %s=%r at step %d; %r is not stored", run_id, key, known[step], step, value
                )
        for start in range(0, len(fresh), MAX_METRICS):
            self.client.log_batch(run_id, metrics=fresh[start : start + MAX_METRICS])

    def _history(self, run_id: str, key: str) -> dict[int, float]:
        """Map the stored steps of a metric to their values, read once and cached. The caller may add to it."""
        if run_id not in self._stored:
            self._stored[run_id] = dict.fromkeys(self.client.get_run(run_id).data.metrics)
        keys = self._stored[run_id]
        known = keys.get(key, {})
        if known is None:
            known = {m.step: m.value for m in self.client.get_metric_history(run_id, key)}
        keys[key] = known
        return known

    def _send_files(self, run_id: str, message: Message) -> None:
        self._log(run_id, Path(message["path"]), message["into"])

    def _send_text(self, run_id: str, message: Message) -> None:
        folder, _, name = message["name"].rpartition("/")
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary) / name
            file.write_text(message["text"], encoding="utf-8", errors="backslashreplace", newline="")
            self._log(run_id, file, folder)

    def _send_heatmap(self, run_id: str, message: Message) -> None:
        from ctvr.orchestrator.figures import figures  # matplotlib takes a second to import

        folder, _, name = message["name"].rpartition("/")
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary) / f"{name}.png"
            tags = self.client.get_run(run_id).data.tags
            title = " on ".join(filter(None, (tags.get("ctvr.method"), tags.get("ctvr.stream"))))
            figures.save(figures.draw_matrices(message["matrices"], title, limits=(0.0, 100.0)), file)
            self._log(run_id, file, folder)

    def _log(self, run_id: str, path: Path, into: str) -> None:
        """Add a file, or the content of a folder, to a run's artifacts.

        A local folder is written without MLflow, which takes seconds to import and sets file modes that some file
        systems refuse.
        """
        if path.exists() and (folder := self.artifacts.local_folder(run_id)) is not None:
            copy_files(path, folder / into if path.is_dir() else folder / into / path.name)
        elif path.is_dir():
            self.client.log_artifacts(run_id, str(path), into or None)
        else:
            self.client.log_artifact(run_id, str(path), into or None)

    def _send_name(self, run_id: str, message: Message) -> None:
        run = self.client.get_run(run_id)
        if NAME not in run.data.tags:
            self.client.set_tag(run_id, NAME, run.info.run_name)
        self.client.update_run(run_id, name=message["name"])

    def _send_dataset(self, run_id: str, message: Message) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        of = {name: message["dataset"][name] for name in ("name", "digest", "source_type", "source", "profile")}
        tags = [InputTag("mlflow.data.context", message["dataset"]["context"])]
        self.client.log_inputs(run_id, [DatasetInput(Dataset(**of), tags)])

    def _send_close(self, run_id: str, message: Message) -> None:
        self.client.set_terminated(run_id, message["status"], message["time"])


def is_refusal(error: Exception) -> bool:
    """Return whether an error of `Sender.send` is permanent, because the message itself is wrong."""
    at_fault = isinstance(error, (FileNotFoundError, BadRecord, ConfigError))
    return at_fault or getattr(error, "error_code", None) in REFUSED
