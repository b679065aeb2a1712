"""An MLflow server is killed or stopped while runs are recorded; at the end it holds every metric once."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.tracking import outbox
from ctvr.orchestrator.tracking.recorder import Recorder
from ctvr.orchestrator.tracking.tracker import Tracker, create_store
from tests.chaos.watch import Server

pytestmark = pytest.mark.slow
PATIENT = "300"  # seconds for an answer: on a loaded machine a slow server is not an absent one


@pytest.fixture
def server(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", PATIENT)  # a server that was killed refuses at once
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    create_store(f"sqlite:///{runs / 'mlflow.db'}", runs, "small")
    made = Server(runs)
    made.start()
    made.await_answer()
    yield made
    made.kill()


def stored(runs: Path) -> dict[tuple[str, int], list[float]]:
    """Return (key, step) -> every value that MLflow holds, over all runs."""
    found: dict[tuple[str, int], list[float]] = {}
    with closing(sqlite3.connect(runs / "mlflow.db")) as database:
        for key, step, value in database.execute("select key, step, value from metrics"):
            found.setdefault((key, step), []).append(value)
    return found


def assert_complete(runs: Path, tracker: Tracker, record: Any) -> None:
    """Check that every metric of the record is stored once, with its value, and that the one run has ended."""
    found = stored(runs)
    assert all(len(values) == 1 for values in found.values())
    for step, row in enumerate(record.metrics, start=1):
        for key, value in row.items():
            assert found[key, step] == [value]
    for row in record.training:
        assert found["train/loss/contrastive", int(row["step"])] == [row["train/loss/contrastive"]]
    (run,) = Tracker(tracker.uri, runs).find_runs()
    assert (run.status, run.tags["ctvr.complete"]) == ("FINISHED", "true")
    assert {"config.json", "matrix_own.json", "ranks.json"} <= {
        file.path for file in tracker.client.list_artifacts(run.run_id)
    }
    assert tracker.flush() == (0, 0)


def record_with(manifest: str, stream: Any, runs: Path, tracker: Tracker, during: Any) -> Any:
    """Record a run; `during(task index)` is called after each commit, before it is reported."""
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": 3}
    made = Recorder(tracker, resolve(settings, stream.settings), "the run")

    def report(task: Any, record: Any, seconds: float) -> None:
        during(task.index)
        made.report(task, record, seconds)

    return execute(made.experiment, RunPaths(runs), report=report, on_ready=made.ready).record


def test_a_server_killed_in_a_run_and_its_replay_has_all_once(server, runs, manifest, small_stream):
    tracker = Tracker(server.uri, runs)
    record = record_with(manifest, small_stream, runs, tracker, lambda index: server.kill() if index == 1 else None)
    assert tracker.outbox.pending()
    before = stored(runs)
    assert ("stream/t2v/r1", 1) in before
    assert ("stream/t2v/r1", 2) not in before

    server.start()
    server.await_answer()
    messenger = Tracker(server.uri, runs)
    send, sent = messenger._courier._send, []

    def send_and_kill(run_id: str, message: Any) -> None:
        send(run_id, message)
        sent.append(message)
        if len(sent) == 3:
            server.kill()

    messenger._courier._send = send_and_kill
    assert messenger.flush()[1] > 0

    server.start()
    server.await_answer()
    assert Tracker(server.uri, runs).flush()[1] == 0
    assert_complete(runs, tracker, record)


def test_a_stalled_server_stores_repeated_records_once(server, runs, manifest, small_stream, monkeypatch):
    """A stopped server's socket accepts requests: they arrive when it continues, in addition to the repeated ones."""

    def during(index: int) -> None:
        assert server.process is not None
        if index == 1:
            os.killpg(server.process.pid, signal.SIGSTOP)
        if index == 2:
            os.killpg(server.process.pid, signal.SIGCONT)

    monkeypatch.setattr(outbox, "RETRY_AFTER_S", 0.0)  # every record is tried, so that many are on their way
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    tracker = Tracker(server.uri, runs)
    record = record_with(manifest, small_stream, runs, tracker, during)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", PATIENT)
    server.await_answer()
    Tracker(server.uri, runs).flush()
    assert_complete(runs, tracker, record)
