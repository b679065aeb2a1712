"""Runs whose process has ended: the next start continues its own and closes others; uncertain ones stay open."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctvr.orchestrator.tracking.holders import HOLDER, holder_tags, this_process
from ctvr.orchestrator.tracking.left import close_left, is_left, open_or_take_up
from ctvr.orchestrator.tracking.tracker import Tracker, create_store

SETTINGS = {"method": "lwf", "method.lr": 1e-5, "seed": 0}
TAGS = {"ctvr.commits": "k" * 64}
NOWHERE = "http://127.0.0.1:9"


def holder(**changes) -> dict[str, str]:
    return {HOLDER: json.dumps({**this_process()._asdict(), **changes})}


GONE = holder(pid=2**22 + 1)
ELSEWHERE = holder(pid=2**22 + 1, host="elsewhere")


@pytest.fixture
def tracker(tmp_path: Path) -> Tracker:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    create_store(uri, tmp_path, "small")
    return Tracker(uri, tmp_path)


def status(tracker: Tracker, *runs: str) -> list[str]:
    return [tracker.client.get_run(run).info.status for run in runs]


def test_the_next_start_continues_a_run_of_a_dead_process(tracker):
    for end in (None, "KILLED", "FAILED"):
        name = f"first-{end}"
        first = tracker.open_run("small", name, SETTINGS, None, {**TAGS, **GONE})
        tracker.log_task(first, 1, {"a": 1.0})
        if end:
            tracker.close(first, end)
        fresh = Tracker(tracker.uri, tracker.runs)
        assert open_or_take_up(fresh, "small", "second", SETTINGS, TAGS) == (first, name)
        fresh.log_task(first, 1, {"a": 1.0})
        assert len(fresh.client.get_metric_history(first, "a")) == 1
        assert status(fresh, first) == ["RUNNING"]
        assert fresh.tags_of(first)[HOLDER] == holder_tags()[HOLDER]
        fresh.close(first)


def test_a_run_of_another_process_or_kind_is_not_continued(tracker):
    gone, sweep = {**TAGS, **GONE}, tracker.open_sweep("sweep", "small", {}, GONE)
    others = {
        "alive": (SETTINGS, None, {**TAGS, **holder_tags()}),
        "elsewhere": (SETTINGS, None, {**TAGS, **ELSEWHERE}),
        "unknown": (SETTINGS, None, {**TAGS, HOLDER: ""}),
        "settings": ({**SETTINGS, "threads": 2}, None, gone),
        "commits": (SETTINGS, None, {**gone, "ctvr.commits": "other"}),
        "finished": (SETTINGS, None, gone),
        "trial": (SETTINGS, sweep, gone),
    }
    runs = {why: tracker.open_run("small", why, *how) for why, how in others.items()}
    runs["stream"] = tracker.open_run("large", "stream", SETTINGS, None, gone)
    tracker.close(runs["finished"])
    run_id, name = open_or_take_up(tracker, "small", "second", SETTINGS, TAGS)
    assert name == "second"
    assert run_id not in runs.values()


def test_one_of_two_concurrent_starts_continues_the_run(tracker):
    first = tracker.open_run("small", "first", SETTINGS, None, {**TAGS, **GONE})

    def start(name: str) -> tuple[str, str]:
        return open_or_take_up(Tracker(tracker.uri, tracker.runs), "small", name, SETTINGS, TAGS)

    with ThreadPoolExecutor(2) as pool:
        found = dict(pool.map(start, ["second", "third"]))
    assert len(found) == 2
    assert found[first] == "first"


@pytest.mark.slow
def test_runs_left_by_dead_processes_are_closed(tracker):
    living, dead = (tracker.open_sweep(name, "small", {}, tags) for name, tags in (("a", {}), ("b", GONE)))
    closed = [dead, tracker.open_run("small", "t", {}, dead, GONE), tracker.open_run("small", "r", {}, None, GONE)]
    kept = [
        living,
        tracker.open_run("small", "waits to be tried again", {}, living, GONE),
        tracker.open_run("small", "of a worker that outlives its driver", {}, dead),
        tracker.open_run("small", "elsewhere", {}, None, ELSEWHERE),
        tracker.open_run("small", "of an earlier version", {}, None, {HOLDER: ""}),
        tracker.open_run("small", "mine", {}),
    ]
    assert {run.run_id for run in tracker.find_open("small") if is_left(tracker, run)} == set(closed)
    close_left(tracker, "small")
    assert status(tracker, *closed) == ["KILLED"] * 3
    assert status(tracker, *kept) == ["RUNNING"] * 6
    assert tracker.open_sweep("b", "small", {}) == dead  # `--resume` continues it
    assert status(tracker, dead) == ["RUNNING"]


def test_without_mlflow_a_run_is_opened_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracker = Tracker(NOWHERE, tmp_path)
    run_id, name = open_or_take_up(tracker, "small", "first", SETTINGS, TAGS)
    assert name == "first"
    assert run_id.startswith("offline-")
    close_left(tracker, "small")
