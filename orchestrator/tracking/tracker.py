"""What a run did, in MLflow. Experiment = stream, parent run = sweep, child run = trial.

Writing never raises into training: what cannot be sent waits in `<runs>/outbox` (outbox.py) and `Tracker.flush`
(`ctvr sync`) sends it later. Every write may be repeated without harm: a (metric, step) that is stored is not
stored again, and a run that exists under its key is continued.

Tags of a run: `ctvr.kind` (sweep, trial), `ctvr.key` (its identity below its parent), `ctvr.stream`, `ctvr.sweep`
(the sweep's name), and whatever the caller gives (`ctvr.complete`, `ctvr.note`: see report.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import Settings
from orchestrator.digests import canonical
from orchestrator.tracking.environment import environment
from orchestrator.tracking.outbox import OFFLINE, Courier, Outbox, Record, locked
from orchestrator.tracking.server import check, create_database, new_client, reason, shown
from orchestrator.tracking.values import (
    MAX_PARAM,
    MAX_TAG,
    Histories,
    RunRecord,
    as_text,
    metric_name,
    number,
    quoted,
    same,
    short,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger(__name__)

MAX_METRICS, MAX_PARAMS = 1000, 100  # what MLflow takes in one batch
ENDED = {"FINISHED", "FAILED", "KILLED"}
REFUSED = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"}  # sending it again cannot help


def prepare(uri: str, runs: Path, stream: str | None = None) -> None:
    """Create or upgrade the database, in this process alone, before trials start; and the stream's experiment.

    Several processes that meet a fresh SQLite file at once break it, hence the lock. A file of an older MLflow is
    upgraded after a copy of it was kept beside it.

    Raises:
        ConfigError: if `uri` cannot be used.
    """
    runs = Path(runs)
    check(uri)
    if uri.startswith("sqlite:///"):
        with locked(Path(uri.removeprefix("sqlite:///") + ".lock")):
            create_database(uri)
    if stream is not None:
        Tracker(uri, runs).experiment(stream)


class Tracker:
    """Runs of one MLflow store. Cheap to make and to pickle: MLflow is imported at the first contact."""

    def __init__(self, uri: str, runs: Path) -> None:
        self.uri, self.runs = uri, Path(runs)
        self.outbox = Outbox(self.runs / "outbox")
        self._courier = Courier(self.outbox, self._send, _is_refusal, lambda e: f"{shown(uri)}: {reason(e)}")
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}
        self._opened: dict[str, str] = {}  # offline id -> run id
        self._stored: dict[str, dict[str, dict[int, float] | None]] = {}  # run -> key -> step -> value; None: ask

    def __reduce__(self) -> tuple[Any, ...]:
        return Tracker, (self.uri, self.runs)

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = new_client(self.uri)
        return self._client

    def experiment(self, stream: str) -> str:
        """The id of the stream's experiment, made if need be; safe when several processes ask at once."""
        if stream not in self._experiments:
            found = self.client.get_experiment_by_name(stream)
            if found is None:
                found = self._create_experiment(stream)
            elif found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            self._experiments[stream] = found.experiment_id
        return self._experiments[stream]

    def open_sweep(self, name: str, stream: str, settings: Settings, tags: Mapping[str, str] | None = None) -> str:
        """Start the parent run of a sweep, or continue the one of that name; returns its run id."""
        given = {"ctvr.kind": "sweep", "ctvr.key": name, "ctvr.sweep": name, **(tags or {})}
        return self._open(stream, name, settings, None, given)

    def open_run(
        self,
        stream: str,
        name: str,
        settings: Settings,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Start a trial's run, or continue the run with the same tag `ctvr.key` (default: `name`) and parent.

        Returns its run id; while nothing answers, an id that starts with "offline-" and works in every method here.
        """
        return self._open(stream, name, settings, parent, {"ctvr.kind": "trial", "ctvr.key": name, **(tags or {})})

    def log_task(self, run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record a task's metrics; `step` is the number of tasks learned (1-based)."""
        self.log_history(run_id, {step: metrics})

    def log_training(self, run_id: str, metrics: Mapping[str, float], step: int) -> None:
        """Record training metrics; `step` counts optimizer steps. Many at once: `log_history`."""
        self.log_history(run_id, {step: metrics})

    def log_history(self, run_id: str, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Record many steps in one batch: {step: {key: value}}."""
        values = [[step, metric_name(key), float(value)] for step, row in rows.items() for key, value in row.items()]
        self._courier.deliver(run_id, {"op": "metrics", "values": values, "time": _now()})

    def log_settings(self, run_id: str, settings: Settings) -> None:
        """Record parameters; one that is stored with another value keeps it, and a warning says so."""
        self._courier.deliver(
            run_id, {"op": "settings", "values": {name: as_text(value) for name, value in settings.items()}}
        )

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        self._courier.deliver(run_id, {"op": "tags", "values": {name: str(value) for name, value in tags.items()}})

    def log_artifacts(self, run_id: str, files: Path | Iterable[Path], into: str = "") -> None:
        """Upload a folder's content, or files, below the artifact folder `into`."""
        for path in [files] if isinstance(files, (str, Path)) else files:
            self._courier.deliver(run_id, {"op": "files", "path": str(path), "into": into})

    def log_json(self, run_id: str, name: str, obj: Any) -> None:
        """Record `obj` as the artifact `name` (`.json` is added if it is missing)."""
        name = name if name.endswith(".json") else f"{name}.json"
        self._courier.deliver(run_id, {"op": "text", "name": name, "text": json.dumps(obj, indent=1) + "\n"})

    def log_heatmap(self, run_id: str, name: str, matrix: Sequence[Sequence[float | None]]) -> None:
        """Draw a T x T lower-triangular matrix of R@1 as the artifact `<name>.png`."""
        self._courier.deliver(
            run_id, {"op": "heatmap", "name": name, "matrix": [[*map(number, row)] for row in matrix]}
        )

    def log_environment(self, run_id: str) -> None:
        """Record what the run runs on as `environment.json` and the commit as a tag."""
        found = environment()
        self.log_json(run_id, "environment.json", found)
        if found["commit"]:
            self.set_tags(run_id, {"ctvr.commit": found["commit"]})

    def close(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run as FINISHED, FAILED or KILLED, after sending what waits for it."""
        if status not in ENDED:
            raise ValueError(f"status {status!r}: a run ends as one of {', '.join(sorted(ENDED))}.")
        self._courier.deliver(run_id, {"op": "close", "status": status, "time": _now()}, now=True)

    def register_model(self, run_id: str, name: str, folder: Path, alias: str | None = None) -> str | None:
        """Upload a folder (safetensors and JSON) as `model` and make it a version of the registered model `name`.

        Returns the version, the existing one where the run has one already; None (and a warning) if it failed.
        """
        try:
            return self._register(self._real(run_id), name, folder, alias)
        except Exception as error:
            log.warning("tracking: model %s was not registered: %s", name, reason(error))
            return None

    def flush(self, run_id: str | None = None) -> tuple[int, int]:
        """Send what waits in the outbox; returns (records sent, records that still wait). Never raises."""
        return self._courier.flush(run_id)

    # --- reading ---

    def find_runs(
        self, stream: str | None = None, sweep: str | None = None, tags: Mapping[str, str] | None = None
    ) -> list[RunRecord]:
        """Trials, oldest first: of a stream, of a sweep (name or run id), with these tags; without any, all."""
        wanted = dict(tags or {})
        if sweep is not None:
            wanted["mlflow.parentRunId" if re.fullmatch("[0-9a-f]{32}", sweep) else "ctvr.sweep"] = sweep
        return [self._record(run) for run in self._search(stream, {**wanted, "ctvr.kind": "trial"})]

    def find_sweep(self, name: str) -> RunRecord | None:
        """The parent run of the sweep of that name, the newest if there are several."""
        found = list(self._search(None, {"ctvr.kind": "sweep", "ctvr.sweep": name}))
        return self._record(found[-1]) if found else None

    def download(self, run_id: str, artifact: str) -> Path:
        """Copy an artifact (file or folder) to this machine.

        Raises:
            FileNotFoundError: if the run has no such artifact or it cannot be read.
        """
        run_id = self._real(run_id)
        target = self.runs / "downloads" / run_id
        target.mkdir(parents=True, exist_ok=True)
        try:
            return Path(self.client.download_artifacts(run_id, artifact, str(target)))
        except Exception as error:
            raise FileNotFoundError(f"run {run_id} has no readable artifact {artifact!r}: {reason(error)}") from error

    # --- how ---

    def _send(self, run_id: str, record: Record) -> None:
        """Hand one record to MLflow; the courier decides what an error means."""
        if record["op"] == "open":
            self._send_open(run_id, record)
            return
        real = self._real(run_id)
        try:
            getattr(self, f"_send_{record['op']}")(real, record)
        except Exception:
            self._stored.pop(real, None)  # a batch may have arrived although its answer did not
            raise

    def _real(self, run_id: str) -> str:
        real = self._opened.get(run_id) or self.outbox.real(run_id)
        if real is None:
            raise LookupError(f"run {run_id} was opened while nothing answered and is not sent yet (`ctvr sync`)")
        return real

    def _open(self, stream: str, name: str, settings: Settings, parent: str | None, tags: Mapping[str, str]) -> str:
        identity = canonical({"stream": stream, "key": tags["ctvr.key"], "parent": parent})
        offline = OFFLINE + hashlib.sha256(identity.encode()).hexdigest()[:20]
        texts = {key: as_text(value) for key, value in settings.items()}
        record = {"op": "open", "stream": stream, "name": name, "settings": texts, "parent": parent, "tags": dict(tags)}
        self._courier.deliver(offline, record)
        return self._opened.get(offline) or self.outbox.real(offline) or offline

    def _send_open(self, offline: str, record: Record) -> None:
        parent = record["parent"] and self._real(record["parent"])
        run_id = self._open_now(record["stream"], record["name"], record["settings"], parent, record["tags"])
        self._opened[offline] = run_id
        if self.outbox.has(offline):  # its other records know it by this id
            self.outbox.set_real(offline, run_id)

    def _open_now(
        self, stream: str, name: str, settings: dict[str, str], parent: str | None, tags: dict[str, str]
    ) -> str:
        wanted = {"ctvr.kind": tags["ctvr.kind"], "ctvr.key": tags["ctvr.key"]}
        if parent:
            wanted["mlflow.parentRunId"] = parent
        same = [r for r in self._search(stream, wanted) if parent or "mlflow.parentRunId" not in r.data.tags]
        if same:
            run_id = same[0].info.run_id
            self.client.update_run(run_id, status="RUNNING")
        else:
            full = {**tags, "ctvr.stream": stream, **({"mlflow.parentRunId": parent} if parent else {})}
            if parent and "ctvr.sweep" not in full:
                full["ctvr.sweep"] = self.client.get_run(parent).data.tags.get("ctvr.sweep", "")
            full = {key: short(value, MAX_TAG) for key, value in full.items()}
            run_id = self.client.create_run(self.experiment(stream), tags=full, run_name=name).info.run_id
            self._stored[run_id] = {}
        self._send_settings(run_id, {"values": settings})
        if same:
            self._send_tags(run_id, {"values": tags})
        return run_id

    def _create_experiment(self, stream: str) -> Any:
        from mlflow.exceptions import MlflowException

        where = None
        if self.uri.startswith("sqlite:///"):  # a server decides for itself
            where = (Path(self.uri.removeprefix("sqlite:///")).resolve().parent / "artifacts" / stream).as_uri()
        try:
            self.client.create_experiment(stream, artifact_location=where)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # else: another process was quicker
                raise
        return self.client.get_experiment_by_name(stream)

    def _send_settings(self, run_id: str, record: Record) -> None:
        from mlflow.entities import Param

        old = self.client.get_run(run_id).data.params
        new = {metric_name(name): short(text, MAX_PARAM) for name, text in record["values"].items()}
        changed = sorted(name for name in new if name in old and old[name] != new[name])
        if changed:
            log.warning("tracking: run %s keeps its first value of %s", run_id, ", ".join(changed))
            self._send_tags(run_id, {"values": {"ctvr.changed": ", ".join(changed)}})
        fresh = [Param(name, text) for name, text in new.items() if name not in old]
        for start in range(0, len(fresh), MAX_PARAMS):
            self.client.log_batch(run_id, params=fresh[start : start + MAX_PARAMS])

    def _send_tags(self, run_id: str, record: Record) -> None:
        from mlflow.entities import RunTag

        tags = [RunTag(name, short(text, MAX_TAG)) for name, text in record["values"].items()]
        for start in range(0, len(tags), MAX_PARAMS):
            self.client.log_batch(run_id, tags=tags[start : start + MAX_PARAMS])

    def _send_metrics(self, run_id: str, record: Record) -> None:
        from mlflow.entities import Metric

        fresh = []
        for step, key, value in record["values"]:
            known = self._history(run_id, key)
            if step not in known:
                known[step] = value
                fresh.append(Metric(key, value, record["time"], step))
            elif not same(known[step], value):
                log.warning(
                    "tracking: run %s has %s=%r at step %d; %r is left out", run_id, key, known[step], step, value
                )
        for start in range(0, len(fresh), MAX_METRICS):
            self.client.log_batch(run_id, metrics=fresh[start : start + MAX_METRICS])

    def _history(self, run_id: str, key: str) -> dict[int, float]:
        """What is stored of one metric, asked for once: step -> value. To be changed by the caller."""
        if run_id not in self._stored:
            self._stored[run_id] = dict.fromkeys(self.client.get_run(run_id).data.metrics)
        keys = self._stored[run_id]
        known = keys.get(key, {})
        if known is None:
            known = {m.step: m.value for m in self.client.get_metric_history(run_id, key)}
        keys[key] = known
        return known

    def _send_files(self, run_id: str, record: Record) -> None:
        path, into = Path(record["path"]), record["into"] or None
        if path.is_dir():
            self.client.log_artifacts(run_id, str(path), into)
        else:
            self.client.log_artifact(run_id, str(path), into)

    def _send_text(self, run_id: str, record: Record) -> None:
        self.client.log_text(run_id, record["text"], record["name"])

    def _send_heatmap(self, run_id: str, record: Record) -> None:
        from orchestrator.tracking import figures  # matplotlib takes a second to import

        folder, _, name = record["name"].rpartition("/")
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary) / f"{name}.png"
            figures.save(figures.draw_matrices({name: record["matrix"]}), file)
            self.client.log_artifact(run_id, str(file), folder or None)

    def _send_close(self, run_id: str, record: Record) -> None:
        self.client.set_terminated(run_id, record["status"], record["time"])

    def _register(self, run_id: str, name: str, folder: Path, alias: str | None) -> str:
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
            self.client.log_artifacts(run_id, str(folder), "model")
            source = f"{self.client.get_run(run_id).info.artifact_uri}/model"
            version = str(self.client.create_model_version(name, source, run_id, await_creation_for=0).version)
        if alias:
            self.client.set_registered_model_alias(name, alias, version)
        return version

    def _search(self, stream: str | None, tags: Mapping[str, str]) -> Iterator[Run]:
        """Runs with these tags, oldest first."""
        if stream is None:
            experiments = [e.experiment_id for e in self.client.search_experiments()]
        else:
            found = self.client.get_experiment_by_name(stream)
            experiments = [found.experiment_id] if found else []
        if not experiments:
            return
        query = " and ".join(f"tags.`{name}` = {quoted(value)}" for name, value in tags.items())
        token = None
        while True:
            page = self.client.search_runs(
                experiments, query, max_results=1000, order_by=["attributes.start_time ASC"], page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _record(self, run: Run) -> RunRecord:
        info, data = run.info, run.data

        def read(key: str) -> list[tuple[int, float]]:
            points = {m.step: m.value for m in self.client.get_metric_history(info.run_id, key)}
            return sorted(points.items())

        latest = {m.key: (m.step, m.value) for m in data._metric_objs}  # the public dictionary has lost the steps
        metrics, settings, tags = Histories(latest, read), dict(data.params), dict(data.tags)
        return RunRecord(
            info.run_id, info.run_name, settings, metrics, tags, info.status, info.artifact_uri, info.start_time
        )


def _is_refusal(error: Exception) -> bool:
    missing = isinstance(error, FileNotFoundError)
    return missing or getattr(error, "error_code", None) in REFUSED


def _now() -> int:
    return int(time.time() * 1000)
