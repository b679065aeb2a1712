"""Killing the engine reports no fault in the present code, and reports planted faults."""

from collections import Counter
from pathlib import Path

import pytest

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.learning import commits
from ctvr.orchestrator.learning.loop import Loop
from ctvr.orchestrator.store import local
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.mlflow_writer import Sender
from ctvr.orchestrator.tracking.outbox import Outbox
from tests.chaos.engine import Engine, Unbroken, compare
from tests.chaos.lifecycle import Kill, Story, Tracked

METHOD, RANDOM = "lora", "framefusion_moe"  # the latter adds experts that begin at random


def imagined(folder: Path, seed: int = 3) -> Engine:
    """An engine whose unkilled runs are not run, which is enough to generate its stories."""
    engine = Engine(folder, seed, ("a", "b"))
    calls = {"sqlite": 40, "away": 50, "back": 50}
    engine.unbroken = {name: Unbroken("", {}, calls, 1.0) for name in engine.methods}  # type: ignore[arg-type]
    return engine


def test_stories_are_the_same_for_the_same_seed_and_differ_otherwise(tmp_path):
    stories = [[imagined(tmp_path, seed).story(number) for number in range(40)] for seed in (3, 3, 4)]
    assert stories[0] == stories[1]
    assert stories[0] != stories[2]
    kinds = Counter("call" if kill.call is not None else "moment" for story in stories[0] for kill in story.kills)
    assert min(kinds.values()) > 20
    assert {story.method for story in stories[0]} == {"a", "b"}
    assert {story.tracked for story in stories[0]} == {"away", "back", "sqlite"}
    assert {len(story.kills) for story in stories[0]} == {1, 2, 3}


def test_every_durable_call_is_interrupted_once(tmp_path):
    engine = imagined(tmp_path)
    first = [engine.story(number) for number in range(0, 400, 2)]
    of_outbox = {story.kills[0].call for story in first if story.tracked == "away"}
    assert len(of_outbox) == 50


def test_metrics_are_compared_by_presence_count_and_value():
    expected = {"a 1": 1.0, "b 1": 2.0, "cost/seconds_task 1": None}
    good = {"a 1": (1.0, 1), "b 1": (2.0, 1), "cost/seconds_task 1": (9.0, 1)}
    assert list(compare(expected, good)) == []
    assert list(compare(expected, {**good, "a 1": (1.0, 2)})) == ["metric a 1 is there 2 times"]
    assert list(compare(expected, {**good, "a 1": (1.5, 1)})) == ["metric a 1 is 1.5, should be 1.0"]
    assert list(compare(expected, {**good, "c 1": (1.5, 1)})) == ["metric c 1 should not be there"]
    del good["b 1"]
    assert list(compare(expected, good)) == ["metric b 1 is lost"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CTVR_CACHE", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_DISABLE_TELEMETRY"):
            patch.setenv(name, "")  # its settings are undone
        made = Engine(tmp_path_factory.mktemp("chaos"), 0, (METHOD, RANDOM))
        made.prepare()
        yield made


def late(engine: Engine, tracked: Tracked = "away") -> tuple[Kill, ...]:
    """Return a kill after two tasks are finished and reported."""
    return (Kill(call=engine.unbroken[METHOD].calls[tracked] - 12, when="after"),)


@pytest.mark.slow
@pytest.mark.parametrize("tracked", ["away", "back", "sqlite"])
def test_a_run_killed_at_calls_and_moments_equals_the_unbroken_one(engine, tracked):
    kills = (Kill(call=30, when="within"), Kill(call=20, when="after"), Kill(part=0.3))
    outcome = engine.tell(Story({"away": 0, "back": 1, "sqlite": 2}[tracked], METHOD, tracked, False, kills), 9)
    assert outcome.wrong == []
    assert outcome.kills[:2] == list(kills[:2])
    assert 0 <= outcome.recomputed <= len(outcome.kills)
    assert len(outcome.recovery) >= 1


@pytest.mark.slow
def test_a_run_that_must_decode_first_is_killed_while_it_does(engine):
    outcome = engine.tell(Story(3, METHOD, "away", True, (Kill(call=9, when="before"),)), 9)
    assert outcome.wrong == []
    assert len(outcome.kills) == 1


@pytest.mark.slow
def test_weights_that_a_restart_changes_are_found(engine, monkeypatch):
    load = commits.Commits.load

    def lose_a_bit(self, done):
        weights, galleries = load(self, done)
        return {name: value + 1e-3 for name, value in weights.items()}, galleries

    monkeypatch.setattr(commits.Commits, "load", lose_a_bit)
    outcome = engine.tell(Story(4, METHOD, "away", False, late(engine)), 9)
    assert "the digest differs from the unbroken run's" in outcome.wrong


@pytest.mark.slow
def test_a_task_that_is_trained_twice_is_found(engine, monkeypatch):
    monkeypatch.setattr(commits.Commits, "finished", lambda self, num_tasks: 0)
    outcome = engine.tell(Story(5, METHOD, "away", False, late(engine)), 9)
    assert any("has a commit and was trained again" in problem for problem in outcome.wrong)


@pytest.mark.slow
def test_a_commit_that_is_written_over_is_found(engine, monkeypatch):
    def overwrite(self, kind, key, value):
        self.put_json(kind, key, value)
        return True

    monkeypatch.setattr(commits.Commits, "finished", lambda self, num_tasks: 0)
    monkeypatch.setattr(Store, "create_json", overwrite)
    outcome = engine.tell(Story(6, METHOD, "away", False, late(engine)), 9)
    assert any("was written again" in problem for problem in outcome.wrong)


@pytest.mark.slow
def test_metrics_that_are_lost_or_doubled_are_found(engine, monkeypatch):
    with monkeypatch.context() as patch:
        add = Outbox.add
        patch.setattr(Outbox, "add", lambda self, run, record: record["op"] == "metrics" or add(self, run, record))
        outcome = engine.tell(Story(7, METHOD, "away", False, ()), 9)
    assert "metric stream/t2v/r1 1 is lost" in outcome.wrong
    monkeypatch.setattr(Sender, "_history", lambda self, run_id, key: {})
    outcome = engine.tell(Story(8, METHOD, "sqlite", False, late(engine, "sqlite")), 9)
    assert any("is there 2 times" in problem for problem in outcome.wrong)


def skip_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Skip syncs: unsynced bytes are lost with the machine (faults.py)."""
    patch.setattr(local, "_write_and_sync", lambda path, buffers, mode: path.write_bytes(b"".join(buffers)))


def commit_before_the_objects(patch: pytest.MonkeyPatch) -> None:
    put, settle, waiting = commits.Commits._put, commits.Commits._resolve_conflict, []

    def later(self, kind, stem, arrays):
        content = {name: [str(a.dtype), list(a.shape), commits._sha(a)] for name, a in arrays.items()}
        waiting.append((kind, stem, arrays))
        return f"{stem}-{digest_of(content)[:16]}"

    def first(self, done, commit):
        is_settled = settle(self, done, commit)
        while waiting:
            put(self, *waiting.pop(0))
        return is_settled

    patch.setattr(commits.Commits, "_put", later)
    patch.setattr(commits.Commits, "_resolve_conflict", first)


def forget_the_random_state(patch: pytest.MonkeyPatch) -> None:
    """Drop the random state: the fault occurs in every attempt that resumes from a commit."""
    load, seed, resumed = commits.Commits.load, Loop._seed, []

    def noted(self, done):
        resumed.append(done)
        return load(self, done)

    patch.setattr(commits.Commits, "load", noted)
    patch.setattr(Loop, "_seed", lambda self, *parts: None if resumed else seed(self, *parts))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "method", "plant"),
    [(10, METHOD, skip_the_sync), (11, METHOD, commit_before_the_objects), (12, RANDOM, forget_the_random_state)],
)
def test_planted_faults_of_the_engine_are_found(engine, monkeypatch, number, method, plant):
    """Only a kill in between reveals a commit that is written too early, so attempts end at one call after another."""
    plant(monkeypatch)
    kills = tuple(Kill(call=call, when="after") for call in range(20, 32, 2))
    outcome = engine.tell(Story(number, method, "away", False, kills), 9)
    assert outcome.wrong
