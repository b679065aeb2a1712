"""Mirrors get all of MLflow's numbers, in order, and cannot stop a run. The trackers are modules of this test."""

import csv
import json
import sys
import threading

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.run import train
from ctvr.orchestrator.tracking import mirror
from ctvr.orchestrator.tracking.mirror import Mirror, check_mirror
from ctvr.orchestrator.tracking.run_record import metric_name
from tests.entry_points import install
from tests.refusing import refuses

STUB = """
import json
from pathlib import Path
class Settings:
    def __init__(self, **given): self.given = given
def init(**given):
    global file
    file = (Path(given.get("dir") or ".") / "stub.jsonl").open("a")
    file.write(json.dumps({"init": {k: str(v) for k, v in given.items() if k != "settings"}}) + chr(10))
def log(row):
    if FAILS: raise RuntimeError("no room")
    file.write(json.dumps(row) + chr(10))
def finish():
    file.close()
FAILS = False
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Write a package called wandb that writes rows to a file."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(STUB)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    sys.modules.pop("wandb", None)


@pytest.mark.slow
def test_mirror_gets_all_metrics_and_its_errors_are_not_fatal(stub, runs, manifest, caplog):
    execution = ExecutionConfig(runs=runs)
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": "1", "tracking.mirror": "wandb"}
    done = train(settings, (), execution)
    rows = [json.loads(line) for line in (runs / "mirror" / "stub.jsonl").read_text().splitlines()]
    assert rows[0]["init"]["mode"] == "offline"
    assert rows[0]["init"]["project"] == "small"
    shown = [(row["step"], row["stream/t2v/r1"]) for row in rows[1:] if "stream/t2v/r1" in row]
    (run,) = execution.tracker().find_runs()
    assert shown == run.metrics["stream/t2v/r1"]
    keys = {key for row in rows[1:] for key in row} - {"step"}
    assert {key for key in keys if key.startswith("train/")}
    assert {metric_name(key) for key in keys} <= set(run.metrics)

    sys.modules["wandb"].FAILS = True
    again = train({**settings, "seed": "1"}, (), execution)
    assert "wandb has stopped (no room); the run continues" in caplog.text
    assert len(again.record.own) == len(done.record.own)
    assert len(execution.tracker().find_runs(tags={"ctvr.complete": "true"})) == 2


def test_hanging_mirror_blocks_nothing_and_counts_dropped_rows(tmp_path, monkeypatch, caplog):
    opened = threading.Event()

    class Hangs:
        def __init__(self, *given: object) -> None:
            opened.wait(60)

    monkeypatch.setattr(mirror, "PATIENCE", 0.01)
    monkeypatch.setattr(mirror, "ROOM", 2)
    monkeypatch.setitem(mirror.WRITERS, "trackio", Hangs)
    made = Mirror("trackio", tmp_path, "run", "stream", {})
    made.log({step: {"a": 1.0} for step in range(10)})
    made.close()
    opened.set()
    assert "8 rows did not fit" in caplog.text
    nothing = Mirror("none", tmp_path / "none", "run", "stream", {})
    nothing.log({1: {"a": 1.0}})
    nothing.close()
    assert not (tmp_path / "none").exists()


def test_a_missing_package_is_named_in_one_line_before_anything_is_trained(runs, manifest, monkeypatch):
    monkeypatch.setattr(mirror, "find_spec", lambda name: None)
    with refuses(where="tracking.mirror"):
        train({"method": "zero_shot", "stream": manifest, "tracking.mirror": "trackio"}, (), ExecutionConfig(runs=runs))
    assert not (runs / "mlflow.db").exists()
    with pytest.raises(ConfigError, match=r"tracking.mirror: .*'wandbb'"):
        train({"method": "zero_shot", "stream": manifest, "tracking.mirror": "wandbb"}, (), ExecutionConfig(runs=runs))
    check_mirror("none")


@pytest.mark.slow
def test_a_csv_file_has_a_line_for_each_value(runs, manifest):
    execution = ExecutionConfig(runs=runs)
    train({"method": "clip4clip", "stream": manifest, "optim.epochs": "1", "tracking.mirror": "csv"}, (), execution)
    (run,) = execution.tracker().find_runs()
    with (runs / "mirror" / "small" / f"{run.name}.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["run"] for line in lines} == {run.name}
    after = [(int(line["task"]), float(line["value"])) for line in lines if line["name"] == "stream/t2v/r1"]
    assert after == run.metrics["stream/t2v/r1"]
    trained = [line for line in lines if line["name"].startswith("train/")]
    steps = {int(line["step"]) for line in trained}
    assert len(steps) == 3  # an epoch of each task
    assert all(bool(line["step"]) != bool(line["task"]) for line in lines)


def test_a_mirror_of_another_package_gets_steps_and_tasks(tmp_path, monkeypatch, caplog):
    source = """
class Kept:
    rows = []
    def __init__(self, folder, name, project, settings): self.rows.append((name, project, settings))
    def write(self, step, values, task): self.rows.append((step, values, task))
    def end(self): self.rows.append("end")
class Fails(Kept):
    def write(self, step, values, task): raise RuntimeError("full")
class Short:
    def write(self, step, values, task): pass
"""
    points = {"kept": "kept_mirror:Kept", "fails": "kept_mirror:Fails", "short": "kept_mirror:Short"}
    install(tmp_path, "kept", {"ctvr.mirrors": points}, kept_mirror=source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kept_mirror", raising=False)
    check_mirror("kept")
    made = Mirror("kept", tmp_path / "m", "run", "stream", {"a": 1})
    made.log({7: {"train/loss": 0.5}})
    made.log({1: {"stream/t2v/r1": 20.0}}, task=1)
    made.close()
    rows = sys.modules["kept_mirror"].Kept.rows
    assert rows == [("run", "stream", {"a": 1}), (7, {"train/loss": 0.5}, None), (1, {"stream/t2v/r1": 20.0}, 1), "end"]
    failing = Mirror("fails", tmp_path / "m", "run", "stream", {})
    failing.log({1: {"a": 1.0}})
    failing.close()
    assert {"tracking.mirror:", "fails", "(full);"} <= set(caplog.text.split())
    with refuses("short", "end", where="tracking.mirror", remedy=True):
        check_mirror("short")
