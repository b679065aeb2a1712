"""The settings of a key and the differences of two keys are printed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ctvr.methods import METHODS
from ctvr.orchestrator.digests import canonical
from ctvr.orchestrator.jobs.explain import RESULT, _today, compare, explain
from ctvr.orchestrator.keys.run_key import code_digests, environment
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tables.setting_diff import PROVENANCE
from ctvr.orchestrator.tracking import tracker as tracking
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import missing_from, refuses

DIGEST = "d" * 64
GIVEN = {"method": "clip4clip", "stream": "small", "backbone.name": "tiny-clip", "backbone.weights": "shipped"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    tracking.create_store(f"sqlite:///{runs}/mlflow.db", runs, "small")
    return runs


@pytest.fixture(scope="module")
def tracker(folder: Path) -> Tracker:
    return Tracker(f"sqlite:///{folder}/mlflow.db", folder)


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    return Store.open(folder / "store")


def track(tracker: Tracker, stream: str = DIGEST, **changed: Any) -> str:
    """Record a run with these settings, as a recorder opens it; return its key."""
    experiment = resolve({**GIVEN, **{name.replace("__", "."): value for name, value in changed.items()}})
    key = experiment.key(cast(Stream, SimpleNamespace(digest=stream, protocol="ctvr")))
    tags = {RESULT: key, "ctvr.stream_digest": stream, "ctvr.commit": "c0ffee", "ctvr.identity": key}
    tags[PROVENANCE] = canonical(
        experiment.environment_digests(cast(Stream, SimpleNamespace(digest=stream, protocol="ctvr")))
    )
    tracker.open_run("small", f"run-{key[:6]}", experiment.settings, None, tags)
    return key


def commit(store: Store, key: str, tasks: int) -> None:
    store.put("weights", f"{key}/w", {"x": np.zeros(2)})
    for done in range(1, tasks + 1):
        record = {"metrics": [{"stream/t2v/r1": 10.0 * done}], "seconds": [1.5] * done, "steps": 7 * done}
        store.create_json(
            "commits", f"{key}/task_{done:03d}", {"weights": f"{key}/w", "galleries": [], "record": record}
        )


@pytest.mark.parametrize("method", METHODS)
def test_settings_as_mlflow_keeps_them_give_the_same_key(method):
    seen = set()
    for preset in presets_of(method):
        experiment = resolve({**GIVEN, "method": method}, None, [preset])
        if (kinds := {(name, type(value)) for name, value in experiment.settings.items()}) <= seen:
            continue
        seen |= kinds
        settings = {name: as_text(value) for name, value in experiment.settings.items()}
        run = SimpleNamespace(name="r", settings=settings, tags={"ctvr.stream_digest": DIGEST})
        key = experiment.key(cast(Stream, SimpleNamespace(digest=DIGEST, protocol="ctvr")))
        assert "give the same key" in _today(key, cast(RunRecord, run)), preset


@pytest.mark.slow
def test_explain_shows_settings_stream_runs_and_finished_tasks(store, tracker):
    key = track(tracker, seed=7)
    commit(store, key, tasks=2)
    text = explain(key[:12], store, tracker)
    assert text.startswith(f"result {key}\n")
    assert "  seed = 7\n" in text
    assert "  method = clip4clip\n" in text
    assert f"small, digest {DIGEST}" in text
    assert f"run-{key[:6]}" in text
    assert "the environment here give the same key" in text
    assert "2 finished" in text
    assert "task_002  1.5 s, 14 steps so far, R@1 20.00" in text
    idle = next(line for line in text.splitlines() if line.startswith("not in the key: "))
    assert "data.prefetch_threads=None" in idle
    assert "stream=" in idle
    assert "data.prefetch_threads = " not in text


def test_a_task_of_images_is_reported_with_its_accuracy(store, tracker):
    key = track(tracker, seed=11)
    store.put("weights", f"{key}/w", {"x": np.zeros(2)})
    record = {"metrics": [{"stream/knn/accuracy": 71.5}], "seconds": [2.0], "steps": 3}
    store.create_json("commits", f"{key}/task_001", {"weights": f"{key}/w", "galleries": [], "record": record})
    assert "task_001  2.0 s, 3 steps so far, accuracy 71.50\n" in f"{explain(key[:12], store, tracker)}\n"


def test_a_run_that_finished_no_task_is_known_from_mlflow(store, tracker):
    key = track(tracker, seed=8)
    for prefix in (key, key[:10], f"{key}/task_001"):
        assert "none is finished" in explain(prefix, store, tracker)


def test_changed_code_is_noticed(store, tracker, monkeypatch):
    key = track(tracker, seed=9)
    changed = code_digests("clip4clip") | {"code of the method": "e" * 64}
    monkeypatch.setattr("ctvr.orchestrator.settings.experiment.code_digests", lambda *names: changed)
    assert "  code of the method here differ, so that a run now has the key" in explain(key, store, tracker)


def test_unknown_settings_of_a_record_are_reported(store, tracker):
    key = "f0" * 32
    tags = {RESULT: key, "ctvr.stream_digest": DIGEST}
    tracker.open_run("small", "old", {**GIVEN, "optim.gone": 1}, None, tags)
    assert not missing_from(explain(key, store, tracker), "optim.gone", "setting")


def test_explain_lists_tasks_of_the_store_without_mlflow(store):
    key = "ab" * 32
    commit(store, key, tasks=1)
    store.delete("weights", f"{key}/w")
    text = explain(key, store)
    assert "unknown without MLflow" in text
    assert "1 of its objects is missing, so it is trained again" in text
    commit(store, key, tasks=2)
    store.delete("weights", f"{key}/w")
    tasks = explain(key, store).splitlines()[-2:]
    assert tasks[0].endswith("R@1 10.00, its weights were not kept")
    assert tasks[1].endswith("1 of its objects is missing, so it is trained again")
    commit(store, f"zero-{key}", tasks=1)
    assert "method zero_shot" in explain(f"zero-{key}", store)


def test_a_damaged_commit_is_reported(store):
    key = "cd" * 32
    commit(store, key, tasks=1)
    (Path(store.uri) / "commits" / key / "task_001.json").write_text("{")
    assert "task_001  damaged" in explain(key, store)


def test_explain_names_the_video_of_a_frames_key(store, tracker):
    key = "12" * 32
    frames = {"frames": np.zeros((4, 8, 8, 3), np.uint8)}
    store.put("frames", key, frames, {"video": "cat.mp4", "decoder": "pyav-1"})
    text = explain(key[:8], store, tracker)
    assert "cat.mp4" in text
    assert "4 of 8 x 8, 768 bytes" in text


@pytest.mark.parametrize("prefix", ["", "abc", "no key", "../../etc", "a" * 65])
def test_a_text_that_is_not_a_key_is_refused_in_one_line(store, tracker, prefix):
    with refuses(*repr(prefix).split()):
        explain(prefix, store, tracker)


def test_an_unknown_and_an_ambiguous_prefix_are_refused(store, tracker):
    with refuses("MLflow"):
        explain("0123abcd", store, tracker)
    for end in ("0", "1"):
        commit(store, "beef" + end * 60, tasks=1)
    with refuses("2", "beef"):
        explain("beef", store)
    assert explain("beef" + "0" * 60, store).startswith("result beef000")


def test_two_keys_differ_by_what_is_listed(store, tracker):
    first, second = track(tracker, seed=1), track(tracker, seed=2, data__prefetch_threads=2)
    lines = compare(first, second, store, tracker).splitlines()
    assert lines[2:] == ["seed         a: 1  b: 2", "not in the key, but different: data.prefetch_threads"]
    assert compare(first[:12], first, store, tracker) == f"both are {first}"


def test_two_keys_may_differ_by_stream_or_environment_alone(store, tracker, monkeypatch):
    first, other_stream = track(tracker, seed=3), track(tracker, stream="e" * 64, seed=3)
    (line,) = compare(first, other_stream, store, tracker).splitlines()[2:]
    assert line.startswith("stream ")
    assert "other videos, captions or order" in line
    known = {**environment("cpu"), "torch": "0.1"}
    monkeypatch.setattr("ctvr.orchestrator.settings.experiment.environment", lambda device: known)
    (line,) = compare(first, track(tracker, seed=3), store, tracker).splitlines()[2:]
    assert line.startswith("torch ")
    assert line.endswith("b: 0.1")


def test_explain_shows_the_known_parts_of_an_old_run(store, tracker):
    first, key = track(tracker, seed=4), "5a" * 32
    tags = {RESULT: key, "ctvr.stream_digest": DIGEST, "ctvr.commit": "decade", "ctvr.identity": "older"}
    tracker.open_run("small", "older", resolve({**GIVEN, "seed": 4}).settings, None, tags)
    text = compare(first, key, store, tracker)
    assert "the code or the backbone's weights have changed" in text
    assert "commit      a: c0ffee  b: decade" in text


def test_a_key_without_a_tracked_run_cannot_be_compared(store, tracker):
    key = "9a" * 32
    commit(store, key, tasks=1)
    with refuses("MLflow", where="key 9a9a9a9a9a9a9a9a"):
        compare(key, key, store, tracker)
