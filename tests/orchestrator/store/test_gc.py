"""Garbage collection removes only objects that no record names and that no run may still need."""

import numpy as np
import pytest

from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.store.gc import DAY, USES, find_garbage, find_weights, note_use, remove_garbage
from ctvr.orchestrator.store.store import Store

X = {"features": np.ones((2, 3), np.float32)}
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture
def later(monkeypatch):
    """Advance the clock of the store by a number of days."""

    def wait(days: float) -> None:
        now = Store.clock

        def clock(self: Store) -> float:
            return now(self) + days * DAY

        monkeypatch.setattr(Store, "clock", clock)

    return wait


def finish_task(store: Store, run: str, done: int, value: float) -> None:
    import torch

    Commits(store, run).publish({"w": torch.full((2,), value)}, [torch.full((3, 2), value)], RunState(done=done))


def found(store: Store, **how) -> set[str]:
    return {entry.name.rpartition("-")[0] or entry.name for entry in find_garbage(store, **how).entries}


def test_frames_that_no_stream_uses_are_garbage_after_a_day(store, later):
    for key in (A, B):
        store.put("frames", key, X, {})
    note_use(store, "Shapes 5", [A])
    assert not find_garbage(store).entries  # whose record may be on the way
    later(1.1)
    assert [entry.name for entry in find_garbage(store).entries] == [f"frames/{B}.safetensors"]
    assert find_garbage(store).by_kind()["frames"].objects == 1


def test_features_are_needed_as_long_as_their_frames(store, later):
    for key in (f"{A}/b32", f"{B}/b32"):
        store.put("features", key, X, {})
    note_use(store, "shapes-5", [A])
    later(2)
    assert [entry.name for entry in find_garbage(store).entries] == [f"features/{B}/b32.safetensors"]


def test_what_a_commit_names_is_needed_and_what_was_never_committed_is_not(store, later):
    finish_task(store, A, 1, 1.0)
    store.put("weights", f"{A}/task_002-{'0' * 16}", X, {})  # its writer was killed before the commit
    later(2)
    assert found(store) == {f"weights/{A}/task_002"}
    garbage = find_garbage(store)
    assert remove_garbage(store, garbage) == (1, garbage.entries[0].bytes)
    assert Commits(store, A).finished(3) == 1
    assert not find_garbage(store).entries


def test_an_age_removes_old_runs_and_uses_but_no_recent_ones(store, later):
    finish_task(store, A, 1, 1.0)
    store.put("frames", C, X, {})
    note_use(store, "shapes-5", [C])
    later(40)
    assert not find_garbage(store).entries
    assert not find_garbage(store, older_than=41).entries
    everything = {f"commits/{A}/task_001.json", f"weights/{A}/task_001", f"gallery/{A}/task_001"}
    everything |= {f"frames/{C}.safetensors", f"{USES}/shapes-5"}
    assert found(store, older_than=39) == everything
    assert found(store, older_than=39, recent={A}) == {f"frames/{C}.safetensors", f"{USES}/shapes-5"}
    remove_garbage(store, find_garbage(store, older_than=39))
    assert store.size().objects == 0


def test_the_commits_of_a_run_age_together(store, tmp_path):
    import os

    for done in (1, 2, 3):
        finish_task(store, A, done, float(done))
    old = store.clock() - 50 * DAY
    for file in (tmp_path / "store").rglob("*task_00[12]*"):
        os.utime(file, (old, old))
    assert not find_garbage(store, older_than=30).entries  # its last task was finished today


def test_old_record_named_by_a_new_one_is_kept(store, tmp_path):
    import os

    finish_task(store, A, 1, 1.0)
    old = store.clock() - 50 * DAY
    for file in (tmp_path / "store").rglob("*task_001*"):
        os.utime(file, (old, old))
    assert len(find_garbage(store, older_than=30).entries) == 3
    store.put_json("prefixes", "x", {"task": [f"{A}/task_001"]})
    assert not find_garbage(store, older_than=30).entries


def test_weights_that_another_run_reuses_are_kept(store):
    for run, done, value in ((A, 1, 1.0), (A, 2, 2.0), (A, 3, 3.0), (B, 1, 4.0)):
        finish_task(store, run, done, value)
    store.put_json("commits", f"{C}/task_002", {**store.get_json("commits", f"{A}/task_002"), "reused": 2})
    garbage = find_weights(store, {A})
    assert {entry.name.rpartition("-")[0] for entry in garbage.entries} == {f"weights/{A}/task_003"}
    remove_garbage(store, garbage)
    assert [Commits(store, run).finished(3) for run in (A, B, C)] == [2, 1, 2]
    assert Commits(store, A).record(3).done == 3  # the numbers stay


def test_a_use_is_noted_once_a_day(store, monkeypatch):
    note_use(store, "a", [A, B])
    puts = store.counters["put"]
    note_use(store, "a", [B, A])
    assert store.counters["put"] == puts
    monkeypatch.setattr("time.strftime", lambda *arguments: "2100-01-01")
    note_use(store, "a", [A, B])
    assert store.counters["put"] == puts + 1
    assert len(store.list(USES)) == 1


def test_a_record_that_appears_during_the_search_saves_its_objects(store, later):
    for key in (A, B):
        store.put("frames", key, X, {})
    later(2)
    garbage = find_garbage(store)
    note_use(store, "a", [A])
    store.put("frames", B, X, {})  # decoded again by another process
    assert remove_garbage(store, garbage).objects == 0
    assert store.list("frames") == [A, B]


def test_readers_keep_their_maps_and_later_ones_find_an_object_missing(store, later):
    store.put("frames", A, X, {})
    arrays = store.get("frames", A)
    later(2)
    remove_garbage(store, find_garbage(store))
    np.testing.assert_array_equal(arrays["features"], X["features"])
    with pytest.raises(MissingObject):
        store.get("frames", A)


def test_files_that_are_none_of_ours_stay(store, later, tmp_path):
    names = ("weights/vit.safetensors", "notes.txt", "models/a/b.safetensors", "list.json", "models/config.json")
    strange = [tmp_path / "store" / name for name in names]
    for file in strange:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"somebody's work")
    later(400)
    assert not find_garbage(store, older_than=1).entries
    assert all(problem for _, problem in store.verify())
    assert all(file.read_bytes() == b"somebody's work" for file in strange)


def test_a_damaged_record_names_nothing_and_stops_nothing(store, later, tmp_path):
    store.put("frames", A, X, {})
    note_use(store, "a", [A])
    next((tmp_path / "store" / USES).iterdir()).write_text("{")
    later(2)
    assert [entry.name for entry in find_garbage(store).entries] == [f"frames/{A}.safetensors"]
