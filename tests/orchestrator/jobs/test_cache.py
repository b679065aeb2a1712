"""`ctvr cache`: fill, list, check and clean the store."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.cache import (
    build_cache,
    collect_garbage,
    collect_losers,
    list_cache,
    recent_runs,
    verify_cache,
)
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.store.gc import DAY
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.metric_names import GAIN
from ctvr.orchestrator.tracking.holders import HOLDER, this_process
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import missing_from, refuses


@pytest.fixture
def execution(runs: Path) -> ExecutionConfig:
    return ExecutionConfig(runs=runs)


@pytest.fixture
def later(monkeypatch):
    """Advance all clocks by a number of days."""

    def wait(days: float) -> None:
        clock, now = Store.clock, time.time
        monkeypatch.setattr(Store, "clock", lambda self: clock(self) + days * DAY)
        monkeypatch.setattr("time.time", lambda: now() + days * DAY)

    return wait


@pytest.fixture
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def spoil_frames(execution: ExecutionConfig) -> None:
    """Flip a bit of one object."""
    frames = next(path for path in (execution.runs / "store" / "frames").rglob("*") if path.is_file())
    data = bytearray(frames.read_bytes())
    data[len(data) // 2] ^= 1
    frames.write_bytes(data)


@pytest.mark.slow
def test_a_second_build_decodes_nothing(execution, manifest):
    assert build_cache(manifest, {}, execution) == "stream small: 0 videos decoded, 30 were in the store"


def test_the_list_has_every_kind_with_its_size(execution):
    rows = {line.split()[0]: line.split() for line in list_cache(execution).splitlines()}
    assert set(rows) == {"commits", "features", "frames", "gallery", "prefixes", "reads", "uses", "weights", "all"}
    assert rows["frames"][1:3] == ["30", "objects"]
    assert float(rows["all"][3]) == pytest.approx(sum(float(rows[k][3]) for k in rows if k != "all"), abs=0.3)


def test_the_list_has_the_copies_of_a_remote_store(execution, tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "open", classmethod(lambda cls, uri, open=Store.open: open(uri, cache=tmp_path / "c")))
    place = f"memory://{tmp_path}"
    Store.open(place).put_json("k", "a", 1)
    text = list_cache(ExecutionConfig(runs=execution.runs, store=place))
    assert "copies" in text
    assert "at most 93.1 GiB (CTVR_CACHE_GB)" in text


def test_damage_is_reported_and_removed_on_demand(execution, manifest, quiet):
    assert verify_cache(execution).startswith("all ")
    spoil_frames(execution)
    with pytest.raises(ConfigError, match="--yes"):
        verify_cache(execution)
    assert "removed; they are created again when needed" in verify_cache(execution, remove=True)
    assert verify_cache(execution).startswith("all ")
    assert build_cache(manifest, {}, execution) == "stream small: 1 video decoded, 29 were in the store"


def test_broken_videos_are_listed_and_others_decoded(execution, manifest):
    videos = Path(manifest).parent / "videos"
    (videos / "red_train_0.mp4").write_bytes(b"no video at all")
    (videos / "green_test_1.mp4").unlink()
    with pytest.raises(ConfigError) as caught:
        build_cache(manifest, {"data.num_frames": "3"}, execution)
    assert not missing_from(str(caught.value), 28, 0, 2, "green_test_1", "red_train_0.mp4")
    text = build_cache(manifest, {"data.num_frames": "3", "data.skip_missing": "true"}, execution)
    assert text.splitlines()[0] == "stream small: 0 videos decoded, 28 were in the store, 2 cannot be used"


def test_nothing_is_removed_unless_asked(execution, manifest, later):
    assert collect_garbage(execution).startswith("nothing to remove: all ")
    store = execution.places().open_store()
    for use in store.list("uses"):
        store.delete("uses", use)
    commits = store.list("commits")
    later(3)
    before = store.size()
    told = collect_garbage(execution)
    found = [line.split()[:3] for line in told.splitlines()[:2]]
    assert found == [["features", "18", "objects"], ["frames", "30", "objects"]]
    assert told.endswith(f"of {before.objects}; --yes removes them")
    assert store.size() == before
    assert collect_garbage(execution, remove=True).splitlines()[-1].split()[:3] == ["removed", "48", "objects"]
    assert not store.list("frames")
    assert not store.list("features")
    assert store.list("commits") == commits
    assert collect_garbage(execution).startswith("nothing to remove: all ")


def test_runs_that_go_on_and_sweeps_that_had_a_run_lately_are_recent():
    now, day = time.time() * 1000, DAY * 1000

    def run(key: str, status: str, days: float, sweep: str = "", holder: str = "") -> RunRecord:
        tags = {"ctvr.result": key, "ctvr.sweep": sweep, HOLDER: holder}
        return RunRecord(key, key, {}, {}, tags, status, "", int(now - days * day))

    runs = [
        run("old", "FINISHED", 40),
        run("new", "FINISHED", 3),
        run("slow", "RUNNING", 40),
        run("killed", "RUNNING", 40, holder=json.dumps({**this_process()._asdict(), "pid": 2**22 + 1})),
        run("held", "RUNNING", 40, holder=json.dumps(this_process()._asdict())),
        run("first", "FINISHED", 40, "monday"),
        run("last", "FINISHED", 3, "monday"),
        run("other", "FINISHED", 40, "sunday"),
        RunRecord("started", "started", {}, {}, {}, "RUNNING", "", int(now)),  # has no result yet
    ]
    tracker = SimpleNamespace(find_runs=lambda strict=False: runs)
    assert recent_runs(tracker, 30) == {"new", "slow", "held", "first", "last"}
    assert recent_runs(tracker, 50) == {"new", "slow", "held", "killed", "first", "last", "old", "other"}


def test_an_age_removes_commits_except_those_of_recent_runs(execution, later, monkeypatch):
    store = execution.places().open_store()
    keys = sorted({name.partition("/")[0] for name in store.list("commits")})
    later(40)
    run = RunRecord("a", "a", {}, {}, {"ctvr.result": keys[0]}, "RUNNING", "")
    monkeypatch.setattr(
        ExecutionConfig, "existing_tracker", lambda self: SimpleNamespace(find_runs=lambda strict=False: [run])
    )
    assert collect_garbage(execution, 50).startswith("nothing to remove")
    collect_garbage(execution, 30, remove=True)
    assert {name.partition("/")[0] for name in store.list("commits")} == {keys[0]}


def test_an_age_of_less_than_a_day_is_refused(execution):
    with refuses("1", "0.5", where="--older-than"):
        collect_garbage(execution, 0.5)


def weights(store: Store) -> dict[str, set[str]]:
    """Return the tasks with stored weights of each run."""
    found: dict[str, set[str]] = {}
    for key in store.list("weights"):
        run, _, task = key.partition("/")
        found.setdefault(run, set()).add(task[:8])
    return found


@pytest.fixture
def swept(execution: ExecutionConfig, monkeypatch):
    """Return a finished sweep of three trials, the second the best; another run has the third's settings."""
    store = Store.open(execution.runs / "swept")
    for key in ("one", "two", "three"):
        for done in (1, 2):
            weight = torch.full((2,), float(len(key) + done))
            Commits(store, key).publish({"w": weight}, [weight[None]], RunState(done=done))
    runs = []

    def record(name: str, key: str, gain: float, sweep: str, status: str = "FINISHED") -> None:
        tags = {"ctvr.result": key, "ctvr.commits": key, "ctvr.sweep": sweep, "ctvr.complete": "true"}
        runs.append(RunRecord(name, name, {}, {GAIN: [(2, gain)]}, tags, status, ""))

    for name, gain in (("one", 1.0), ("two", 2.0), ("three", 0.5)):
        record(f"s-{name}", name, gain, "s")
    record("elsewhere", "three", 0.5, "other")
    tracker = SimpleNamespace(
        parent=RunRecord("p", "s", {}, {}, {}, "FINISHED", ""),
        find_sweeps=list,
        find_sweep=lambda name: tracker.parent if name == "s" else None,
        require_sweep=lambda name: Tracker.require_sweep(cast("Tracker", tracker), name),
        find_runs=lambda sweep=None, tags=None, strict=False: [
            run for run in runs if sweep in (None, run.tags["ctvr.sweep"])
        ],
    )
    monkeypatch.setattr(ExecutionConfig, "existing_tracker", lambda self: tracker)
    monkeypatch.setattr(ExecutionConfig, "existing_store", lambda self: store)
    return SimpleNamespace(store=store, tracker=tracker)


def test_weights_of_losers_are_removed_and_metrics_stay(execution, swept):
    every, commits = weights(swept.store), swept.store.list("commits")
    told = collect_losers(execution, "s")
    assert told.splitlines()[0].split()[:3] == ["weights", "2", "objects"]
    assert told.endswith("--yes removes them")
    assert weights(swept.store) == every
    assert collect_losers(execution, "s", remove=True).splitlines()[-1].split()[:3] == ["removed", "2", "objects"]
    assert weights(swept.store) == {key: tasks for key, tasks in every.items() if key != "one"}
    assert swept.store.list("commits") == commits
    assert collect_losers(execution, "s").startswith("nothing to remove")


@pytest.mark.parametrize("status", ["RUNNING", "KILLED", "FAILED"])
def test_an_unfinished_sweep_keeps_all_weights(execution, swept, status):
    swept.tracker.parent = replace(swept.tracker.parent, status=status)
    with refuses("--losers", "--resume"):
        collect_losers(execution, "s", remove=True)


def test_losers_of_an_unknown_sweep_are_refused(execution, swept):
    with refuses("nope", where="sweep"):
        collect_losers(execution, "nope")
