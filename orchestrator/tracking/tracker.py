"""Recording of runs in MLflow. Experiment = stream, parent run = sweep, child run = trial.

Writing does not raise errors into training: unsent messages are kept in `<runs>/outbox` (outbox.py), and
`Tracker.flush` (`ctvr runs sync`) sends them later. The event log keeps all messages (event_log.py). Every write may be
repeated: a (metric, step) that exists is not stored again, and a run that exists under its identity is continued.

Tags of a run: `ctvr.kind` (sweep, trial), `ctvr.identity` (its identity below its parent), `ctvr.stream`, `ctvr.sweep`
(the sweep's name), `ctvr.holder` (its process: holders.py), and tags from the caller (`ctvr.complete`,
`ctvr.note`: see tables/build.py).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.addresses import require_allowed
from ctvr.orchestrator.config import Settings, suggest
from ctvr.orchestrator.digests import canonical
from ctvr.orchestrator.errors import ConfigError, StoreError
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.tracking.artifacts import ArtifactAddresses
from ctvr.orchestrator.tracking.environment import environment
from ctvr.orchestrator.tracking.event_log import EVENTS, EventLog, Runs, replay
from ctvr.orchestrator.tracking.holders import holder_tags
from ctvr.orchestrator.tracking.internals import PARENT, SOURCE, USER
from ctvr.orchestrator.tracking.messages import ENDED, Message, without_secrets
from ctvr.orchestrator.tracking.mlflow_ui import page_of_runs
from ctvr.orchestrator.tracking.mlflow_writer import Sender, is_refusal
from ctvr.orchestrator.tracking.outbox import OFFLINE, Outbox, OutboxSender, locked
from ctvr.orchestrator.tracking.relocate import follow_move
from ctvr.orchestrator.tracking.run_reader import RunReader
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text, metric_name, number
from ctvr.orchestrator.tracking.server import check, create_database, reason, remedy_for

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)
OUTBOX = "outbox"
WRITTEN = (OUTBOX, EVENTS, "mlflow.db")  # after a run, a runs folder contains at least one of these
_RETRY = "Run the command again; existing data is kept."


def create_store(uri: str, runs: Path, stream: str | None = None) -> None:
    """Create or upgrade the database and the stream's experiment, in one process, before trials start.

    Concurrent processes would break a new SQLite file, hence the lock. The file of an older MLflow is upgraded; a copy
    of it is kept next to it.

    Raises:
        ConfigError: if `uri` cannot be used.
    """
    runs = Path(runs)
    check(uri)
    if uri.startswith("sqlite:///"):
        with locked(Path(uri.removeprefix("sqlite:///") + ".lock")):
            create_database(uri)
            follow_move(Path(uri.removeprefix("sqlite:///")))
    if stream is not None:
        try:
            Tracker(uri, runs).experiment(stream)
        except Exception as error:  # a full disk, or a file that another process has locked since: one line
            raise ConfigError(reason(error), f"tracking {uri}", remedy=remedy_for(error, uri)) from error


class Tracker:
    """Runs of one MLflow store. Cheap to create and to pickle: MLflow is imported at the first request."""

    def __init__(self, uri: str, runs: Path) -> None:
        self.uri, self.runs = uri, Path(runs)
        self.outbox = Outbox(self.runs / OUTBOX)
        self.event_log = EventLog(self.runs / EVENTS)
        self._sender = Sender(uri, self.outbox, self.event_log)
        self._reader = RunReader(uri, self._sender)
        self._courier = OutboxSender(
            self.outbox, self._sender.send, is_refusal, lambda e: f"{redact(uri)}: {reason(e)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Tracker, (self.uri, self.runs)

    @property
    def client(self) -> MlflowClient:
        return self._sender.client

    def experiment(self, stream: str) -> str:
        """Return the id of the stream's experiment, created if it is missing; safe for concurrent processes."""
        return self._sender.experiment(stream)

    def pages(self) -> list[tuple[str, str]]:
        """Return the name of each stream with runs and the address of its page in MLflow, newest first."""
        found = self.client.search_experiments(filter_string="name != 'Default'")
        return [(each.name, page_of_runs(each.experiment_id)) for each in found if self.experiment(each.name)]

    def open_sweep(self, name: str, stream: str, settings: Settings, tags: Mapping[str, str] | None = None) -> str:
        """Start the parent run of a sweep, or continue the run of that name; return its run id."""
        given = {"ctvr.kind": "sweep", "ctvr.identity": name, "ctvr.sweep": name, **(tags or {})}
        return self._open(stream, name, settings, None, given)

    def open_run(
        self,
        stream: str,
        name: str,
        settings: Settings,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Start a trial's run, or continue the run with the same tag `ctvr.identity` (default: `name`) and parent.

        Returns its run id; while the server does not respond, an id "offline-..." that works in every method of this
        class.
        """
        return self._open(stream, name, settings, parent, {"ctvr.kind": "trial", "ctvr.identity": name, **(tags or {})})

    def log_task(self, run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record a task's metrics; `step` is the number of tasks learned (1-based)."""
        self.log_history(run_id, {step: metrics})

    def log_history(self, run_id: str, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Record many steps in one batch: {step: {key: value}}."""
        values = [[step, metric_name(key), float(value)] for step, row in rows.items() for key, value in row.items()]
        self._tell(run_id, {"op": "metrics", "values": values, "time": _now()})

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        self._tell(run_id, {"op": "tags", "values": {name: str(value) for name, value in tags.items()}})

    def log_artifacts(self, run_id: str, files: Path | Iterable[Path], into: str = "") -> None:
        """Upload a folder's content, or files, below the artifact folder `into`."""
        for path in [files] if isinstance(files, (str, Path)) else files:
            self._tell(run_id, {"op": "files", "path": str(path), "into": into})

    def log_json(self, run_id: str, name: str, obj: Any) -> None:
        """Record `obj` as the artifact `name` (`.json` is added if it is missing)."""
        name = name if name.endswith(".json") else f"{name}.json"
        self.log_text(run_id, name, json.dumps(obj, indent=1) + "\n")

    def log_text(self, run_id: str, name: str, text: str) -> None:
        """Record `text` as the artifact `name`."""
        self._tell(run_id, {"op": "text", "name": name, "text": text})

    def log_heatmap(self, run_id: str, name: str, matrices: Mapping[str, Sequence[Sequence[float | None]]]) -> None:
        """Record a figure of lower-triangular matrices of R@1 (T x T tasks, by title) as artifact `<name>.png`."""
        numbers = {title: [[*map(number, row)] for row in matrix] for title, matrix in matrices.items()}
        self._tell(run_id, {"op": "heatmap", "name": name, "matrices": numbers})

    def rename(self, run_id: str, name: str) -> None:
        """Rename a run on MLflow's pages; `RunRecord.name` does not change."""
        self._courier.deliver(run_id, without_secrets({"op": "name", "name": name}))

    def log_dataset(self, run_id: str, dataset: Mapping[str, str]) -> None:
        """Record a data set that the run reads (mlflow_ui.py, `dataset_of`)."""
        self._courier.deliver(run_id, without_secrets({"op": "dataset", "dataset": dict(dataset)}))

    def log_environment(self, run_id: str) -> None:
        """Record the run's environment as `environment.json` and the commit as a tag."""
        found = environment()
        self.log_json(run_id, "environment.json", found)
        if found["commit"]:
            self.set_tags(run_id, {"ctvr.commit": found["commit"], SOURCE["commit"]: found["commit"]})

    def close(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run as FINISHED, FAILED or KILLED, after its unsent messages."""
        if status not in ENDED:
            raise ValueError(f"status: {status!r} is not a final status. Use one of {', '.join(sorted(ENDED))}.")
        self._tell(run_id, {"op": "close", "status": status, "time": _now()}, now=True)

    @property
    def artifacts(self) -> ArtifactAddresses:
        return self._sender.artifacts

    def has_artifacts(self, run_id: str, folder: str) -> bool:
        """Return whether an artifact folder of a run has files; raises ConfigError as `download` does."""
        self._sender.artifacts.of(self._sender.real(run_id))
        return bool(self.client.list_artifacts(run_id, folder))

    def register_model(self, run_id: str, name: str, aliases: Sequence[str] = ()) -> str | None:
        """Register a run's artifact `model` as a version of the model `name`; aliases move to that version.

        Returns the number of the version, which may already exist; None, with a warning, after an error.
        """
        try:
            return self._sender.register(self._sender.real(run_id), name, aliases)
        except Exception as error:
            log.warning("tracking: model %s was not registered: %s", name, reason(error))
            return None

    def flush(self, run_id: str | None = None) -> tuple[int, int]:
        """Send the unsent messages of the outbox; return (messages sent, messages left). Never raises."""
        return self._courier.flush(run_id)

    @property
    def set_aside(self) -> int:
        """Number of records with permanent errors that `flush` found, kept in `*-refused.jsonl` of the outbox."""
        return self._courier.set_aside

    @property
    def waits_because(self) -> str:
        """Reasons for which `flush` left records unsent, in one line."""
        return "; ".join(self._courier.reasons) or "another process is sending them"

    def resend(self, runs: Runs, bad: list[str]) -> dict[str, dict[str, Any]]:
        """Send the messages of the event log again, in addition to existing data; return the tags of each run id.

        Args:
            runs: result of `EventLog.runs`.
            bad: list to which a line for each record with a permanent error is appended.

        Raises:
            StoreError: for an error that is not permanent.
        """

        def judge(name: str, message: Message, error: Exception) -> None:
            if not is_refusal(error) and type(error) is not LookupError:  # LookupError: its sweep was never logged
                raise StoreError(f"tracking {self.uri}: {reason(error)}. {_RETRY}") from error
            bad.append(f"{self.event_log.folder / name}.jsonl: a record ({message['op']}) is refused: {reason(error)}")

        return dict(replay(runs, self._sender.send, self._sender.opened, judge).values())

    def add_rows(self, run_id: str, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Record earlier results as `log_history` does, but raise an error instead of using the outbox.

        Raises:
            StoreError: if MLflow does not accept it.
        """
        values = [[step, metric_name(key), float(value)] for step, row in rows.items() for key, value in row.items()]
        try:
            self._sender.send(run_id, {"op": "metrics", "values": values, "time": _now()})
        except Exception as error:
            raise StoreError(f"tracking {self.uri}: {reason(error)}. {_RETRY}") from error

    def delete_run(self, run_id: str) -> None:
        """Mark a run's record as deleted in MLflow; `mlflow runs restore` undoes it."""
        self.client.delete_run(self._sender.real(run_id))

    # --- reading ---

    def find_runs(
        self,
        stream: str | None = None,
        sweep: str | None = None,
        tags: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> list[RunRecord]:
        """Return trials, oldest first. Each argument restricts them: to a stream, to a sweep (name or run id), to tags.

        A run with a damaged record is skipped with a warning; with `strict`, for deletions, it is an error.
        """
        wanted = dict(tags or {})
        if sweep is not None:
            wanted[PARENT if re.fullmatch("[0-9a-f]{32}", sweep) else "ctvr.sweep"] = sweep
        return self._reader.find(stream, {**wanted, "ctvr.kind": "trial"}, strict=strict)

    def find_sweep(self, name: str) -> RunRecord | None:
        """Return the parent run of the sweep of that name, the newest if there are several."""
        found = self._reader.find(None, {"ctvr.kind": "sweep", "ctvr.sweep": name}, strict=True)
        return found[-1] if found else None

    def require_sweep(self, name: str) -> RunRecord:
        """Return the parent run of a sweep.

        Raises:
            ConfigError: if there is no sweep of that name; the message lists known sweeps.
        """
        if (sweep := self.find_sweep(name)) is not None:
            return sweep
        known = [each.name for each in reversed(self.find_sweeps())]
        some = ", ".join(known[:8]) or "none yet"
        raise ConfigError(f"{name!r} does not exist.{suggest(name, known)} Known: {some}.", "sweep")

    def find_sweeps(self) -> list[RunRecord]:
        """Return the parent runs of all sweeps and reruns, oldest first."""
        return self._reader.find(None, {"ctvr.kind": "sweep"})

    def find_open(self, stream: str) -> list[RunRecord]:
        """Return the open runs and sweeps of a stream, oldest first."""
        return self._reader.find(stream, {}, "RUNNING")

    def tags_of(self, run_id: str) -> dict[str, str]:
        """Return the tags of a run."""
        return dict(self.client.get_run(self._sender.real(run_id)).data.tags)

    def download(self, run_id: str, artifact: str) -> Path:
        """Return the local path of an artifact (file or folder), downloaded if necessary.

        Raises:
            ConfigError: if its record names a host or a folder that this command may not use (addresses.py).
            FileNotFoundError: if the run does not have the artifact or it cannot be read.
        """
        run_id = self._sender.real(run_id)
        if (
            folder := self._sender.artifacts.local_folder(run_id)
        ) is not None:  # MLflow, whose import takes seconds, is not needed
            if (folder / artifact).exists():
                require_allowed(str(folder / artifact), f"run {run_id[:8]}: {artifact}", self.runs, self.uri)
                return folder / artifact
            raise FileNotFoundError(f"run {run_id} has no readable artifact {artifact!r}")
        self._sender.artifacts.of(run_id)
        target = self.runs / "downloads" / run_id
        target.mkdir(parents=True, exist_ok=True)
        try:
            return Path(self.client.download_artifacts(run_id, artifact, str(target)))
        except Exception as error:
            raise FileNotFoundError(f"run {run_id} has no readable artifact {artifact!r}: {reason(error)}") from error

    # --- internals ---

    def _open(self, stream: str, name: str, settings: Settings, parent: str | None, tags: Mapping[str, str]) -> str:
        identity = canonical({"stream": stream, "key": tags["ctvr.identity"], "parent": parent})
        offline = OFFLINE + hashlib.sha256(identity.encode()).hexdigest()[:20]
        texts = {key: as_text(value) for key, value in settings.items()}
        message = {
            "op": "open",
            "stream": stream,
            "name": name,
            "settings": texts,
            "parent": parent,
            "tags": {SOURCE["name"]: "ctvr", SOURCE["type"]: "LOCAL", **current_user(), **holder_tags(), **tags},
        }
        self._tell(offline, message)
        run_id = self._sender.opened.get(offline) or self.outbox.server_id(offline) or offline
        self.event_log.record_alias(offline, run_id)
        return run_id

    def _tell(self, run_id: str, message: Message, now: bool = False) -> None:
        message = without_secrets(message)
        self.event_log.add(run_id, message)
        self._courier.deliver(run_id, message, now)


def _now() -> int:
    return int(time.time() * 1000)


def current_user() -> dict[str, str]:
    """Return the user's name as a tag for MLflow's pages; empty if the system lacks a name (some containers)."""
    try:
        return {USER: getpass.getuser()}
    except (KeyError, OSError):
        return {}
