"""Killing the engine reports no fault in the present code, and reports planted faults."""

from dataclasses import replace

import pytest

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.learning.record.commits import Commits, _sha
from ctvr.orchestrator.learning.training.loop import Loop
from ctvr.orchestrator.store import local
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.mlflow_writer import Sender
from ctvr.orchestrator.tracking.outbox import Outbox
from tests.chaos import __main__
from tests.chaos.concurrent_writers import compete
from tests.chaos.engine import Engine
from tests.chaos.lifecycle import Kill, Story, run_child

METHOD, RANDOM = "lora", "framefusion_moe"  # the latter adds experts that begin at random


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CTVR_CACHE", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_DISABLE_TELEMETRY"):
            patch.setenv(name, "")  # its settings are undone
        made = Engine(tmp_path_factory.mktemp("chaos"), 0, (METHOD, RANDOM))
        made.prepare()
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("number", "tracked"), [(0, "away"), (1, "back"), (2, "sqlite")])
def test_a_run_killed_at_calls_and_moments_equals_the_unbroken_one(engine, number, tracked):
    kills = (Kill(call=30, when="within"), Kill(call=20, when="after"), Kill(part=0.3))
    outcome = engine.tell(Story(number, METHOD, tracked, False, kills), 9)
    assert outcome.wrong == []
    assert outcome.kills[:2] == list(kills[:2])
    assert 0 <= outcome.recomputed <= len(outcome.kills)


@pytest.mark.parametrize(("wrong", "status"), [([], 0), (["the digest differs"], 1)])
def test_the_status_says_whether_something_differs(capsys, monkeypatch, wrong, status):
    monkeypatch.setattr(__main__, "kill_engine", lambda *words, cases: ("chaos: 3 kills", wrong))
    assert __main__.main(["--kills", "3"]) == status


ADD, LOAD = Outbox.add, Commits.load
AGAIN = (Commits, "finished", lambda self, num_tasks: 0)
OVER = (Store, "create_json", lambda self, kind, key, value: self.put_json(kind, key, value) or True)
UNSENT = (Outbox, "add", lambda self, run, record: record["op"] == "metrics" or ADD(self, run, record))
TWICE = (Sender, "_history", lambda self, run_id, key: {})


def changed(self, done):
    weights, galleries = LOAD(self, done)
    return {name: value + 1e-3 for name, value in weights.items()}, galleries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "tracked", "faults", "found"),
    [
        (4, "away", [(Commits, "load", changed)], "the digest differs from the unbroken run's"),
        (5, "away", [AGAIN], "has a commit and was trained again"),
        (6, "away", [AGAIN, OVER], "was written again"),
        (7, "away", [UNSENT], "metric stream/t2v/r1 1 is lost"),
        (8, "sqlite", [TWICE], "is there 2 times"),
    ],
)
def test_a_planted_fault_is_named(engine, monkeypatch, number, tracked, faults, found):
    late = Kill(call=engine.unbroken[METHOD].calls[tracked] - 12, when="after")  # two tasks are finished and reported
    for fault in faults:
        monkeypatch.setattr(*fault)
    outcome = engine.tell(Story(number, METHOD, tracked, False, () if UNSENT in faults else (late,)), 9)
    assert any(found in problem for problem in outcome.wrong)


def skip_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Skip syncs: unsynced bytes are lost with the machine (faults.py)."""
    patch.setattr(local, "_write_and_sync", lambda path, buffers, mode: path.write_bytes(b"".join(buffers)))


def commit_before_the_objects(patch: pytest.MonkeyPatch) -> None:
    put, settle, waiting = Commits._put, Commits._resolve_conflict, []

    def later(self, kind, stem, arrays):
        waiting.append((kind, stem, arrays))
        return f"{stem}-{digest_of({k: [str(a.dtype), list(a.shape), _sha(a)] for k, a in arrays.items()})[:16]}"

    def first(self, done, commit):
        is_settled = settle(self, done, commit)
        while waiting:
            put(self, *waiting.pop(0))
        return is_settled

    patch.setattr(Commits, "_put", later)
    patch.setattr(Commits, "_resolve_conflict", first)


def forget_the_random_state(patch: pytest.MonkeyPatch) -> None:
    """Drop the random state: the fault occurs in every attempt that resumes from a commit."""
    seed, resumed = Loop._seed, []
    patch.setattr(Commits, "load", lambda self, done: resumed.append(done) or LOAD(self, done))
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
    assert engine.tell(Story(number, method, "away", False, kills), 9).wrong


def contested(number: int, part: float) -> Story:
    return Story(number, METHOD, "sqlite", False, (Kill(part=part),), is_contested=True)


@pytest.mark.slow
def test_two_drivers_with_other_numbers_leave_one_trajectory(engine, tmp_path):
    story = contested(9, 0.5)
    engine.frames_for(tmp_path)
    assert run_child(compete, tmp_path, engine.manifest, replace(story, tracked="away"), 1, None, None) == 0
    assert (tmp_path / "rival1" / "digest").read_text() != engine.unbroken[METHOD].digest  # it has other numbers
    assert engine.tell(story, 9).wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "part"), [(19, 0.0), (39, 0.9)])  # the commit of the first task, and of the second
def test_a_task_whose_commit_was_trained_again_meanwhile_is_refused(engine, number, part):
    outcome = engine.tell(contested(number, part), 9)
    assert (outcome.wrong, len(outcome.kills)) == ([], 1)


@pytest.mark.slow
def test_without_the_check_of_parents_numbers_are_mixed_and_that_is_found(engine, monkeypatch):
    monkeypatch.setattr(Commits, "_is_of_another", lambda self, parent, done: False)
    outcome = engine.tell(contested(59, 0.0), 9)
    assert "task 2 does not go on from the commit of task 1: two drivers' numbers are mixed" in outcome.wrong
