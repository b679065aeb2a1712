"""Clock jumps have no effect on results, on the tasks that count as finished, or on tables."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.disk_cache import DiskCache
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tables.build import build
from ctvr.orchestrator.tables.formats import to_markdown
from ctvr.orchestrator.tracking.recorder import Recorder
from ctvr.orchestrator.tracking.tracker import Tracker, create_store
from tests.chaos.lifecycle import digest_of_run

JUMPS = [timedelta(hours=-1), timedelta(days=365), timedelta(days=-3650), timedelta(minutes=10)]
real_time, real_time_ns = time.time, time.time_ns


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the clock jump at every query."""
    rng = np.random.default_rng(7)

    def offset() -> float:
        return float(rng.choice([jump.total_seconds() for jump in JUMPS]))

    monkeypatch.setattr(time, "time", lambda: real_time() + offset())
    monkeypatch.setattr(time, "time_ns", lambda: real_time_ns() + int(offset() * 1e9))


def digest(result: Result, places: RunPaths) -> str:
    return digest_of_run(result.record, result.method, Commits(places.open_store(), result.key).galleries(3))


def set_times(root: Path, seed: int) -> None:
    """Give every file a random modification time within 20 years."""
    rng = np.random.default_rng(seed)
    for file in sorted(root.rglob("*")):
        moment = real_time() + float(rng.uniform(-10, 10)) * 365 * 86400
        os.utime(file, (moment, moment))


@pytest.mark.slow
def test_a_run_under_jumping_clocks_resumes_to_the_same_numbers(runs, manifest, small_stream, tmp_path, jumping):
    settings = {"method": "lora", "stream": manifest, "optim.epochs": 1}
    experiment = resolve(settings, small_stream.settings)
    other = tmp_path / "other"
    shutil.copytree(runs, other)

    def stop(task: object, record: object, seconds: float) -> None:
        set_times(runs / "store", seed=len(list((runs / "store" / "commits").rglob("task_*"))))
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            execute(experiment, RunPaths(runs), report=stop)
    result = execute(experiment, RunPaths(runs))
    assert result.resumed == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", real_time)
        patch.setattr(time, "time_ns", real_time_ns)
        unbroken = execute(experiment, RunPaths(other))
    assert unbroken.resumed == 0
    assert result.key == unbroken.key
    assert digest(result, RunPaths(runs)) == digest(unbroken, RunPaths(other))


def test_a_file_that_a_writer_is_at_may_look_old_to_others(tmp_path, monkeypatch):
    """A process whose clock is a year ahead removes `old` remains while an object is being written."""
    store = Store.open(tmp_path / "store")
    replace = os.replace
    opened = []

    def open_meanwhile(source: Path, target: Path) -> None:
        if not opened:
            opened.append(target)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(time, "time", lambda: real_time() + 365 * 86400)
                Store.open(tmp_path / "store")
        replace(source, target)

    monkeypatch.setattr(os, "replace", open_meanwhile)
    store.put("k", "a", {"x": np.arange(3)}, {})
    assert opened
    assert store.get("k", "a")["x"].tolist() == [0, 1, 2]


def test_a_local_copy_is_returned_for_any_file_times(tmp_path, jumping):
    store = Store.open(f"memory://{tmp_path}", cache=tmp_path / "cache", cache_bytes=6000)
    for number in range(12):
        store.put("k", f"{number}", {"x": np.full(60, number)}, {})
        set_times(tmp_path / "cache", number)
    assert isinstance(store._cache, DiskCache)
    assert sum(size for _, size, _ in store._cache.names()) <= 6000
    for number in range(12):
        assert store.get("k", f"{number}")["x"].tolist() == [number] * 60


@pytest.mark.slow
def test_tables_do_not_depend_on_the_clock(runs, manifest, small_stream, tmp_path, monkeypatch):
    def tabulate(folder: Path, jumps: list[float]) -> str:
        """Return runs of two methods and two seeds as a table; each run begins at its own clock jump."""
        shutil.copytree(runs, folder)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        create_store(uri, folder, "small")
        tracker = Tracker(uri, folder)
        for number, jump in enumerate(jumps):
            monkeypatch.setattr(time, "time", lambda jump=jump: real_time() + jump)
            method, seed = ("lora", "zero_shot")[number % 2], number // 2
            experiment = resolve({"method": method, "stream": manifest, "seed": seed}, small_stream.settings)
            recorder = Recorder(tracker, experiment, f"{method}-{seed}")
            execute(experiment, RunPaths(folder), report=recorder.report, on_ready=recorder.ready)
        monkeypatch.setattr(time, "time", real_time)
        return to_markdown(build(tracker, Tracker(uri, folder).find_runs(stream="small")))

    plain = tabulate(tmp_path / "plain", [0.0] * 4)
    jumped = tabulate(tmp_path / "jumped", [0.0, -86400.0, 365 * 86400.0, -3600.0])
    cost = "cost"  # times differ between any two runs and stand in a table of their own
    assert cost not in plain.splitlines()[0]
    assert plain == jumped
