"""A killed run is read back: its digest, its stream, and its waiting and stored metrics."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ctvr.orchestrator.learning.commits import RunState
from ctvr.orchestrator.tracking.tracker import Tracker, create_store
from tests.chaos.lifecycle import NOWHERE, digest_of_run, note, read_events, run_child, stored_metrics, waiting_metrics


def test_the_digest_holds_numbers_and_tensors_but_no_times():
    method, record = torch.nn.Linear(2, 2), RunState(done=1, metrics=[{"a": 1.0}], seconds=[1.0])
    galleries = [torch.zeros(2, 2)]
    digest = digest_of_run(record, method, galleries)  # type: ignore[arg-type]
    assert digest == digest_of_run(replace(record, seconds=[2.0]), method, galleries)  # type: ignore[arg-type]
    others = [
        digest_of_run(replace(record, metrics=[{"a": 2.0}]), method, galleries),  # type: ignore[arg-type]
        digest_of_run(record, method, [torch.ones(2, 2)]),  # type: ignore[arg-type]
        digest_of_run(record, torch.nn.Linear(2, 2), galleries),  # type: ignore[arg-type]
    ]
    assert len({digest, *others}) == 4


def test_events_are_read_in_order(tmp_path):
    assert read_events(tmp_path) == []
    note(tmp_path, "train", 0)
    note(tmp_path, "task", 0)
    (first, second) = read_events(tmp_path)
    assert (first[:2], second[:2]) == (("train", 0), ("task", 0))
    assert first[2] <= second[2]


def fail(home: Path) -> None:
    raise KeyError(str(home))


def test_a_child_that_fails_says_why_in_its_log(tmp_path):
    assert run_child(fail, tmp_path) == 1
    assert "KeyError" in (tmp_path / "log").read_text()


@pytest.fixture
def without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def write_twice(tracker: Tracker) -> None:
    """A run that was reported twice, as after a restart."""
    for _ in range(2):
        run = Tracker(tracker.uri, tracker.runs).open_run("s", "a run", {})
        tracker.log_task(run, 1, {"a": 1.5, "cost/seconds_task": 2.0})
    tracker.close(run)


def test_metrics_that_wait_are_counted_by_their_values(tmp_path, without_retries):
    tracker = Tracker(NOWHERE, tmp_path)
    write_twice(tracker)
    assert waiting_metrics(tmp_path) == {"a 1": (1.5, 1), "cost/seconds_task 1": (2.0, 1), "FINISHED 0": (1.0, 1)}
    tracker.log_task(tracker.outbox.pending()[0], 1, {"a": 2.5, "cost/seconds_task": 3.0})
    assert waiting_metrics(tmp_path)["a 1"] == (1.5, 2)  # two values are a contradiction, except for times
    assert waiting_metrics(tmp_path)["cost/seconds_task 1"][1] == 1


@pytest.mark.slow
def test_metrics_that_are_stored_are_counted_by_their_rows(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    create_store(uri, tmp_path, "s")
    tracker = Tracker(uri, tmp_path)
    write_twice(tracker)
    assert stored_metrics(tmp_path) == {"a 1": (1.5, 1), "cost/seconds_task 1": (2.0, 1), "FINISHED 0": (1.0, 1)}
    (run,) = tracker.find_runs()
    tracker.client.log_metric(run.run_id, "a", 1.5, step=1)
    assert stored_metrics(tmp_path)["a 1"] == (1.5, 2)
