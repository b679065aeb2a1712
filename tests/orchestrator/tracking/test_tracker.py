"""The tracker. These tests share one SQLite store, since creating one takes seconds."""

import errno
import json
import logging
import math
import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctvr.orchestrator.tracking import tracker as tracking
from ctvr.orchestrator.tracking.mlflow_writer import Sender
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import refuses

SETTINGS = {"method": "lwf", "method.weight": 0.5, "seed": 0, "data.mean": (0.1, 0.2), "note": None}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    runs = tmp_path_factory.mktemp("runs")
    uri = f"sqlite:///{runs}/mlflow.db"
    tracking.create_store(uri, runs, "shapes-5")
    return uri, runs


@pytest.fixture
def tracker(store, tmp_path) -> Tracker:
    """Return a new tracker of the shared store with its own outbox."""
    return Tracker(store[0], tmp_path)


def only(records: list[RunRecord], run_id: str) -> RunRecord:
    return next(record for record in records if record.run_id == run_id)


def read(tracker: Tracker, run_id: str) -> RunRecord:
    return only(tracker.find_runs("shapes-5"), run_id)


# --- runs


def test_everything_a_table_needs_is_read_back(tracker):
    sweep = tracker.open_sweep("sweep-1", "shapes-5", {"trials": 2}, {"who": "me"})
    run = tracker.open_run("shapes-5", "lwf-0001", SETTINGS, sweep, {"ctvr.complete": "false"})
    tracker.log_task(run, 1, {"stream/t2v/r1": 50.0, "task_01/t2v/r1_own": 55.0})
    tracker.log_task(run, 2, {"stream/t2v/r1": 40.0, "cost/seconds": 3.0})
    tracker.set_tags(run, {"ctvr.complete": "true"})
    tracker.close(run)
    record = only(tracker.find_runs(sweep="sweep-1"), run)
    assert record.name == "lwf-0001"
    assert record.status == "FINISHED"
    assert record.settings == {
        "method": "lwf",
        "method.weight": "0.5",
        "seed": "0",
        "data.mean": "0.1,0.2",
        "note": "None",
    }
    assert record.metrics["stream/t2v/r1"] == [(1, 50.0), (2, 40.0)]
    assert record.metrics["cost/seconds"] == [(2, 3.0)]
    assert record.tags["mlflow.parentRunId"] == sweep
    assert record.tags["ctvr.sweep"] == "sweep-1"
    assert record.tags["ctvr.complete"] == "true"
    assert tracker.find_runs(sweep=sweep) == [record]
    found = tracker.find_sweep("sweep-1")
    assert found is not None
    assert found.run_id == sweep
    assert found.settings == {"trials": "2"}
    assert tracker.find_sweep("never") is None


def test_a_run_opened_twice_under_one_key_is_continued(tracker, store):
    sweep = tracker.open_sweep("sweep-2", "shapes-5", {})
    first = tracker.open_run("shapes-5", "lwf-a", {"seed": 0}, sweep, {"ctvr.identity": "k1"})
    tracker.close(first, "FAILED")
    again = Tracker(*store)
    assert again.open_sweep("sweep-2", "shapes-5", {}) == sweep
    assert again.open_run("shapes-5", "lwf-b", {"seed": 0}, sweep, {"ctvr.identity": "k1"}) == first
    assert read(tracker, first).status == "RUNNING"
    assert again.open_run("shapes-5", "lwf-a", {"seed": 0}, sweep, {"ctvr.identity": "k2"}) != first
    alone = again.open_run("shapes-5", "lwf-a", {"seed": 0}, None, {"ctvr.identity": "k1"})
    assert alone != first


def test_two_processes_that_open_a_run_at_once_share_it(store, tmp_path, monkeypatch):
    find = Sender._find

    def slow(self: Sender, *asked: Any) -> str | None:
        found = find(self, *asked)
        time.sleep(0.5)  # time for the other one to look, if the lock does not stop it
        return found

    monkeypatch.setattr(Sender, "_find", slow)
    with ThreadPoolExecutor(2) as pool:
        trackers = [Tracker(store[0], tmp_path) for _ in range(2)]
        opened = list(pool.map(lambda tracker: tracker.open_run("shapes-5", "at once", SETTINGS), trackers))
    assert len(set(opened)) == 1
    assert len(trackers[0].find_runs("shapes-5", tags={"ctvr.identity": "at once"})) == 1


def test_a_task_logged_again_after_a_resume_is_stored_once(tracker, store):
    run = tracker.open_run("shapes-5", "resumed", SETTINGS)
    tracker.log_task(run, 1, {"stream/t2v/r1": 50.0, "stream/t2v/bwf": math.nan})
    resumed = Tracker(*store)
    for step, value in [(1, 50.0), (2, 40.0), (2, 40.0)]:
        resumed.log_task(run, step, {"stream/t2v/r1": value, "stream/t2v/bwf": math.nan})
    assert [(m.step, m.value) for m in resumed.client.get_metric_history(run, "stream/t2v/r1")] == [
        (1, 50.0),
        (2, 40.0),
    ]
    assert len(resumed.client.get_metric_history(run, "stream/t2v/bwf")) == 2


def test_another_value_for_a_stored_step_is_reported_and_dropped(tracker, caplog):
    run = tracker.open_run("shapes-5", "differs", SETTINGS)
    tracker.log_task(run, 1, {"stream/t2v/r1": 50.0})
    tracker.log_task(run, 1, {"stream/t2v/r1": 51.0})
    assert "is not stored" in caplog.text
    assert read(tracker, run).metrics["stream/t2v/r1"] == [(1, 50.0)]


def test_nan_infinity_and_refused_characters_are_taken(tracker):
    run = tracker.open_run("shapes-5", "odd", SETTINGS)
    tracker.log_task(run, 1, {"stream/t2v/r@1": 1.0, "stream/nan": math.nan, "stream/inf": math.inf})
    metrics = read(tracker, run).metrics
    assert metrics["stream/t2v/r_1"] == [(1, 1.0)]
    assert math.isnan(metrics["stream/nan"][0][1])
    assert metrics["stream/inf"][0][1] > 1e308
    assert tracker.outbox.pending() == []


def test_more_metrics_and_settings_than_one_batch_holds(tracker):
    run = tracker.open_run("shapes-5", "many", {f"method.x{i}": i for i in range(150)})
    tracker.log_history(run, {step: {"train/loss/nce": 1 / step} for step in range(1, 1202)})
    tracker.log_history(run, {1202: {"train/loss/nce": 0.0}})
    assert len(read(tracker, run).settings) == 150
    assert len(tracker.client.get_metric_history(run, "train/loss/nce")) == 1202
    record = read(tracker, run)
    assert record.last("train/loss/nce") == (1202, 0.0)
    assert record.metrics["train/loss/nce"][0] == (1, 1.0)
    assert record.last("train/loss/absent") is None
    assert record.metrics.get("train/loss/absent") is None


def test_a_setting_keeps_its_first_value_and_says_so(tracker, caplog):
    run = tracker.open_run("shapes-5", "settings", {"seed": 0})
    assert tracker.open_run("shapes-5", "settings", {"seed": 1, "workers": 2}) == run
    record = read(tracker, run)
    assert record.settings == {"seed": "0", "workers": "2"}
    assert record.tags["ctvr.changed"] == "seed"
    assert "keeps its first value of seed" in caplog.text


def test_a_long_setting_is_cut_and_carries_its_digest(tracker):
    run = tracker.open_run("shapes-5", "long", {"prompt": "x" * 7000})
    stored = read(tracker, run).settings["prompt"]
    assert len(stored) == 6000
    assert "7000 characters, sha256" in stored
    assert tracker.open_run("shapes-5", "long", {"prompt": "x" * 7000}) == run
    assert "ctvr.changed" not in read(tracker, run).tags


def test_streams_do_not_mix(tracker):
    run = tracker.open_run("shapes-5-other", "elsewhere", SETTINGS)
    assert run not in [r.run_id for r in tracker.find_runs("shapes-5")]
    assert [r.run_id for r in tracker.find_runs("shapes-5-other")] == [run]
    assert tracker.find_runs("no such stream") == []
    assert [r.run_id for r in tracker.find_runs(tags={"ctvr.identity": "elsewhere"})] == [run]


def test_a_closed_run_has_a_known_status(tracker):
    with pytest.raises(ValueError, match="FAILED, FINISHED, KILLED"):
        tracker.close("x", "DONE")


def test_a_tracker_travels_to_workers(tracker):
    copy = pickle.loads(pickle.dumps(tracker))
    assert (copy.uri, copy.runs) == (tracker.uri, tracker.runs)


# --- artifacts


def test_artifacts_come_back_as_they_were(tracker, tmp_path):
    run = tracker.open_run("shapes-5", "artifacts", SETTINGS)
    folder = tmp_path / "commit"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\0\1\2")
    tracker.log_artifacts(run, folder, "model")
    tracker.log_artifacts(run, [folder / "model.safetensors"])
    tracker.log_json(run, "ranks", {"ranks": [1, 2.5]})
    tracker.log_heatmap(run, "matrices/own", {"own": [[50.0], [40.0, None], [30.0, math.nan, 20.0]], "union": [[5.0]]})
    tracker.log_environment(run)
    assert (tracker.download(run, "model") / "model.safetensors").read_bytes() == b"\0\1\2"
    assert tracker.download(run, "model.safetensors").read_bytes() == b"\0\1\2"
    assert json.loads(tracker.download(run, "ranks.json").read_text()) == {"ranks": [1, 2.5]}
    assert tracker.download(run, "matrices/own.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(tracker.download(run, "environment.json").read_text())
    assert found["packages"]["mlflow"]
    assert str(Path.home()) not in json.dumps(found)
    with pytest.raises(FileNotFoundError, match=r"no readable artifact 'absent\.json'"):
        tracker.download(run, "absent.json")
    reader = Tracker(tracker.uri, tracker.runs)
    with pytest.raises(FileNotFoundError, match=r"no readable artifact 'absent\.json'"):
        reader.download(run, "absent.json")
    assert reader._sender._client is None  # MLflow's import takes seconds


def refuse_modes(path, *_, **__):
    raise PermissionError(errno.EPERM, "Operation not permitted", str(path))


@pytest.mark.parametrize("is_offline", [False, True])
def test_artifacts_are_written_where_modes_and_times_cannot_be_set(tracker, tmp_path, monkeypatch, is_offline):
    (tmp_path / "made/below").mkdir(parents=True)
    (tmp_path / "made/below/a.txt").write_text("a")
    run = tracker.open_run("shapes-5", f"modes-{is_offline}", {})
    for name in ("chmod", "utime", "setxattr"):
        monkeypatch.setattr(os, name, refuse_modes, raising=False)
    with monkeypatch.context() as without:
        if is_offline:
            without.setattr(Sender, "send", refuse_modes)
        tracker.log_artifacts(run, tmp_path / "made", into="folder")
        tracker.log_artifacts(run, [tmp_path / "made/below/a.txt"])
        tracker.log_text(run, "texts/b.txt", "\u00e9\r\n")
        tracker.log_heatmap(run, "matrices", {"own": [[1.0]]})
    Tracker(tracker.uri, tmp_path).flush()
    tracker.close(run)
    assert read(tracker, run).status == "FINISHED"
    assert tracker.outbox.pending() == []
    assert [tracker.download(run, name).read_bytes() for name in ("folder/below/a.txt", "a.txt")] == [b"a", b"a"]
    assert tracker.download(run, "texts/b.txt").read_bytes() == "\u00e9\r\n".encode()


def test_a_model_is_registered_once_per_run(tracker):
    run = tracker.open_run("shapes-5", "registered", SETTINGS)
    assert tracker.register_model(run, "lwf-shapes", ["best", "best-shapes-5"]) == "1"
    assert tracker.register_model(run, "lwf-shapes") == "1"
    version = tracker.client.get_model_version_by_alias("lwf-shapes", "best")
    assert version.run_id == run
    assert tracker.register_model("0" * 32, "lwf-shapes") is None


# --- failures


class Down:
    """Return a client of a server that does not answer."""

    def __getattr__(self, name: str) -> None:
        raise ConnectionError("Connection refused")


def test_a_sweep_recorded_while_nothing_answers_arrives_whole(tracker, store, tmp_path, caplog):
    online, tracker._sender._client = tracker.client, Down()
    with caplog.at_level(logging.WARNING):
        sweep = tracker.open_sweep("offline-sweep", "shapes-5", {})
        run = tracker.open_run("shapes-5", "lwf-1", SETTINGS, sweep)
        tracker.log_task(run, 1, {"stream/t2v/r1": 50.0, "stream/t2v/bwf": math.nan})
        (tmp_path / "ranks.json").write_text("[]")
        tracker.log_artifacts(run, [tmp_path / "ranks.json"])
        (tmp_path / "ranks.json").unlink()
        tracker.close(run)
    assert (
        sum("does not answer" in r.getMessage() or "Training continues" in r.getMessage() for r in caplog.records) == 1
    )
    assert run.startswith("offline-")
    tracker._sender._client = online
    other = Tracker(store[0], tmp_path)  # another process: `ctvr runs sync`
    sent, left = other.flush()
    assert (sent, left) == (5, 0)
    (record,) = other.find_runs(sweep="offline-sweep")
    assert record.metrics["stream/t2v/r1"] == [(1, 50.0)]
    assert record.status == "FINISHED"
    assert other.download(record.run_id, "ranks.json").read_text() == "[]"
    assert other.flush() == (0, 0)
    other.log_task(run, 2, {"stream/t2v/r1": 40.0})  # the process that still uses the offline id
    assert tracker.open_run("shapes-5", "lwf-1", SETTINGS, sweep) == record.run_id
    assert len(other.find_runs(sweep="offline-sweep")) == 1
    assert other.find_runs(sweep="offline-sweep")[0].metrics["stream/t2v/r1"] == [(1, 50.0), (2, 40.0)]


@pytest.mark.parametrize("damaged", ["sweep", "run", "tags", "cycle"])
def test_records_of_a_run_whose_opening_is_damaged_do_not_wait_forever(tracker, store, tmp_path, damaged):
    """They are set aside, and the event log restores the run."""
    online, tracker._sender._client = tracker.client, Down()
    sweep = tracker.open_sweep(f"damaged-{damaged}", "shapes-5", {})
    run = tracker.open_run("shapes-5", f"damaged-{damaged}-1", SETTINGS, sweep)
    tracker.log_task(run, 1, {"stream/t2v/r1": 50.0})
    tracker._sender._client = online
    file = tmp_path / "outbox" / f"{run if damaged in ('run', 'tags') else sweep}.jsonl"
    opening, *others = [line for line in file.read_bytes().split(b"\n") if line]
    if damaged == "tags":
        opening = opening.replace(b"ctvr.kind", b"kind")
    else:
        opening = (
            opening.replace(b'"parent": null', f'"parent": "{run}"'.encode()) if damaged == "cycle" else opening[:40]
        )
    file.write_bytes(b"\n".join([opening, *others]))
    other = Tracker(store[0], tmp_path)
    assert other.flush()[1] == 0
    assert other.set_aside == (2 if damaged in ("run", "tags") else 3)
    assert other.flush() == (0, 0)
    assert other.find_runs(sweep=f"damaged-{damaged}") == []
    bad: list[str] = []
    other.resend(other.event_log.runs(), bad)
    assert bad == []
    (record,) = other.find_runs(sweep=f"damaged-{damaged}")
    assert record.metrics["stream/t2v/r1"] == [(1, 50.0)]


def test_an_answer_that_got_lost_does_not_double_the_metrics(tracker):
    run = tracker.open_run("shapes-5", "lost answer", SETTINGS)
    send = tracker.client.log_batch

    def answer_lost(*args, **kwargs):
        send(*args, **kwargs)
        raise ConnectionError("timed out")

    tracker.client.log_batch = answer_lost
    tracker.log_task(run, 1, {"stream/t2v/r1": 50.0})
    tracker.client.log_batch = send
    assert tracker.flush() == (1, 0)
    assert len(tracker.client.get_metric_history(run, "stream/t2v/r1")) == 1


def test_a_record_for_a_run_that_does_not_exist_is_set_aside(tracker, caplog):
    tracker.log_task("0" * 32, 1, {"stream/t2v/r1": 50.0})
    assert "was refused" in caplog.text
    assert tracker.outbox.pending() == []


# --- where records go


def test_preparing_again_or_at_once_changes_nothing(store):
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: tracking.create_store(*store, "shapes-5"), range(3)))
    with ThreadPoolExecutor(3) as pool:
        ids = set(pool.map(lambda _: Tracker(*store).experiment("shapes-race"), range(3)))
    assert len(ids) == 1


def test_a_deleted_experiment_is_brought_back(tracker, store):
    number = tracker.experiment("shapes-deleted")
    tracker.client.delete_experiment(number)
    assert Tracker(*store).experiment("shapes-deleted") == number


def test_a_file_that_is_no_database_is_not_overwritten(tmp_path):
    (tmp_path / "mlflow.db").write_text("my thesis " * 1000)
    with refuses(where="mlflow.db"):
        tracking.create_store(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    assert (tmp_path / "mlflow.db").read_text() == "my thesis " * 1000


# --- a runs folder that moves


def test_copied_runs_folder_is_independent_of_the_original(store, tracker, tmp_path):
    runs = store[1]
    run = tracker.open_run("shapes-5", "moved", {"seed": 0})
    tracker.log_json(run, "config.json", {"of": "the original"})
    there = tmp_path / "a folder" / "elsewhere"
    shutil.copytree(runs, there)
    copied_uri = f"sqlite:///{there}/mlflow.db"
    tracking.create_store(copied_uri, there)
    copy = Tracker(copied_uri, there)
    (there / "artifacts/shapes-5" / run / "artifacts/config.json").write_text('{"of": "the copy"}')
    assert json.loads(copy.download(run, "config.json").read_text()) == {"of": "the copy"}
    assert json.loads(tracker.download(run, "config.json").read_text()) == {"of": "the original"}
    later = copy.open_run("shapes-5", "later", {})
    copy.log_json(later, "config.json", {})
    assert (there / "artifacts/shapes-5" / later / "artifacts/config.json").is_file()
    assert not (runs / "artifacts/shapes-5" / later).exists()


@pytest.mark.parametrize(
    ("uri", "is_below"),
    [("postgresql://h/ml", True), ("sqlite:///{runs}/mlflow.db", True), ("http://h:5000", False)],
)
def test_artifacts_of_a_database_are_below_the_runs_folder_and_a_server_chooses(uri, is_below, tmp_path, monkeypatch):
    created: dict[str, Any] = {}
    sender = Tracker(uri.format(runs=tmp_path), tmp_path)._sender
    client = SimpleNamespace(
        create_experiment=lambda name, **named: created.update(named), get_experiment_by_name=lambda name: None
    )
    monkeypatch.setattr(sender, "_client", client)
    sender._create_experiment("shapes-5")
    below = (tmp_path / "artifacts" / "shapes-5").as_uri()
    assert created["artifact_location"] == (below if is_below else None)
