"""Commits are complete, verified and created once."""

import contextlib

import pytest
import torch

from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.keys.prefix_reuse import Prefixes
from ctvr.orchestrator.learning.record.commits import Commits, digest_of_commit
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.store.store import Store


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def record(done: int) -> RunState:
    return RunState(done=done, own=[[1.0]] * done, union=[[1.0]] * done, metrics=[{"a": 1.0}] * done)


def test_commits_give_back_weights_galleries_and_record(store):
    commits = Commits(store, "run")
    assert commits.finished(3) == 0
    weights = {"w": torch.randn(3, 2)}
    galleries = [torch.randn(4, 2)]
    assert commits.publish(weights, galleries, record(1))
    assert commits.finished(3) == 1
    state, stored = commits.load(1)
    assert torch.equal(state["w"], weights["w"])
    assert torch.equal(stored[0], galleries[0])
    assert commits.record(1) == record(1)


def test_the_galleries_on_which_epochs_are_chosen_are_part_of_a_commit(store):
    commits = Commits(store, "run")
    searched, chosen = [torch.randn(4, 2)], [torch.randn(3, 2)]
    assert commits.publish({"w": torch.zeros(2)}, searched, record(1), selection=chosen)
    assert torch.equal(commits.galleries(1)[0], searched[0])
    assert torch.equal(commits.galleries(1, "selection")[0], chosen[0])
    (key,) = store.get_json("commits", "run/task_001")["selection"]
    store.delete("gallery", key)
    assert commits.finished(3) == 0  # a task whose selection galleries are lost is not finished


def test_a_commit_without_a_choice_has_no_galleries_for_it(store):
    commits = Commits(store, "run")
    commits.publish({"w": torch.zeros(2)}, [torch.randn(4, 2)], record(1))
    assert commits.galleries(1, "selection") == []


def test_the_first_commit_of_a_task_wins_over_a_late_one(store):
    commits = Commits(store, "run")
    first, late = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert commits.publish(first, [torch.zeros(1, 1)], record(1))
    assert not commits.publish(late, [torch.ones(1, 1)], record(1))
    assert torch.equal(commits.load(1)[0]["w"], first["w"])


def test_a_damaged_commit_is_ignored_and_can_be_replaced(store, tmp_path):
    commits = Commits(store, "run")
    commits.publish({"w": torch.zeros(64)}, [torch.zeros(1, 1)], record(1))
    commits.publish({"w": torch.ones(64)}, [torch.zeros(1, 1)] * 2, record(2))
    newest = max((tmp_path / "store" / "weights").rglob("task_002*"))
    content = bytearray(newest.read_bytes())
    content[-8] ^= 1
    newest.chmod(0o644)
    newest.write_bytes(content)
    again = Commits(Store.open(tmp_path / "store"), "run")
    assert again.finished(3) == 1
    assert again.publish({"w": torch.ones(64)}, [torch.zeros(1, 1)] * 2, record(2))
    assert again.finished(3) == 2


@pytest.mark.parametrize(("keeps", "there"), [(False, [3, 4]), (True, [1, 2, 3, 4])])
def test_weights_of_old_tasks_go_unless_they_are_asked_to_stay(store, keeps, there):
    commits = Commits(store, "run", keep_checkpoints=keeps)
    for done in range(1, 5):
        assert commits.publish(value(done), [torch.zeros(1, 1)] * done, record(done))
    kept = []
    for done in range(1, 5):
        with contextlib.suppress(MissingObject):
            kept.append(int(commits.load(done)[0]["w"][0]))
    assert kept == there
    assert commits.finished(4) == 4


def value(number: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), number)}


def test_commit_with_another_parent_is_refused(store):
    first, other = Commits(store, "run"), Commits(store, "run")
    assert first.publish(value(0), [torch.zeros(1, 1)], record(1))
    assert not other.publish(value(1), [torch.ones(1, 1)], record(1))
    other._at = (1, "f" * 64)  # as if it continued from its own task
    assert not other.publish(value(1), [torch.ones(1, 1)] * 2, record(2))
    assert first.finished(3) == 1
    weights, _ = other.load(1)  # the winning commit
    assert other.publish({"w": weights["w"] + 1}, [torch.zeros(1, 1)] * 2, record(2))
    assert not first.publish(value(7), [torch.zeros(1, 1)] * 2, record(2))
    commits = [store.get_json("commits", f"run/task_00{done}") for done in (1, 2)]
    assert [commit["parent"] for commit in commits] == ["", digest_of_commit(commits[0])]


def test_equal_results_are_one_trajectory(store):
    first, other = Commits(store, "run"), Commits(store, "run")
    for commits, seconds in ((first, 1.0), (other, 2.0)):
        mine = record(1)
        mine.seconds = [seconds]
        assert commits.publish(value(0), [torch.zeros(1, 1)], mine)
    assert other.publish(value(1), [torch.zeros(1, 1)] * 2, record(2))
    assert first.publish(value(1), [torch.zeros(1, 1)] * 2, record(2))
    assert first.publish(value(2), [torch.zeros(1, 1)] * 3, record(3))
    assert other.publish(value(2), [torch.zeros(1, 1)] * 3, record(3))


def test_a_run_resumes_from_a_commit_of_an_older_version(store):
    Commits(store, "run").publish(value(0), [torch.zeros(1, 1)], record(1))
    old = {name: part for name, part in store.get_json("commits", "run/task_001").items() if name != "parent"}
    store.put_json("commits", "run/task_001", old)
    again = Commits(store, "run")
    assert again.finished(3) == 1
    again.load(1)
    assert again.publish(value(1), [torch.zeros(1, 1)] * 2, record(2))
    assert not Commits(store, "run").publish(value(5), [torch.zeros(1, 1)], record(1))
    assert store.get_json("commits", "run/task_002")["parent"] == digest_of_commit(old)


@pytest.mark.parametrize("number", [1.0, 2.0])
def test_tasks_are_reused_only_if_the_reported_metrics_are_equal(store, number):
    other = Commits(store, "other", Prefixes(store, "base", {}, {}))
    for done in (1, 2):
        assert other.publish(value(done), [torch.zeros(1, 1)] * done, record(done))
    run = Commits(store, "run", Prefixes(store, "base", {}, {}))
    assert run.publish(value(number), [torch.zeros(1, 1)], RunState(1, [[1.0]], [[1.0]], [{"a": number}]))
    assert run.adopt_prefix(3) == (number == 1.0)
