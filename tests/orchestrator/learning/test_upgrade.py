"""Runs that exchange the backbone within a stream, over the index of the former model."""

import pytest
import torch

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.commits import Commits
from ctvr.orchestrator.learning.factory import restore_from_commits
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.learning.run import RunPaths, execute
from ctvr.orchestrator.learning.upgrade import TwoTokenizers
from tests.orchestrator.learning.test_loop import Killed, numbers, same_weights

AGES = {"evaluation__reencode": "50,100", "evaluation__reencode_after": "all", "evaluation__unlearned_tasks": True}


def made(stream, small_stream, method="clip4clip", **more):
    new = {"upgrade__task": 2, "upgrade__backbone": "tiny-clip-stem"}
    settings = {key.replace("__", "."): value for key, value in {**new, **more}.items()}
    return resolve({"method": method, "stream": stream, "optim.epochs": 1, **settings}, small_stream.settings)


def timeless(record):
    for row in record.metrics:
        row.pop("stream/index/seconds", None)
    return numbers(record)


@pytest.mark.parametrize(
    ("method", "killed_after", "queries"),
    [
        ("clip4clip", 0, "both"),
        ("clip4clip", 1, "map"),
        ("qdc", 1, "both"),
        ("framefusion_moe", 1, "map"),
        ("framefusion_moe", 0, "both"),
        ("er_ring", 1, "both"),
    ],
)
def test_a_run_killed_at_or_within_an_upgrade_ends_as_an_unbroken_one(
    method, killed_after, queries, manifest, small_stream, runs
):
    experiment = made(manifest, small_stream, method, upgrade__queries=queries, **AGES)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)

    def die(task, record, seconds):
        if task.index == killed_after:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, RunPaths(runs), report=die)
    resumed = execute(experiment, RunPaths(runs))
    assert resumed.resumed == killed_after + 1
    assert timeless(resumed.record) == timeless(unbroken.record)
    assert same_weights(resumed, unbroken)
    assert resumed.record.done == 3


def test_the_tasks_before_are_those_of_a_run_without_an_upgrade_and_are_not_trained_again(manifest, small_stream, runs):
    plain = execute(made(manifest, small_stream, upgrade__task=0, upgrade__backbone=""), RunPaths(runs))
    result = execute(made(manifest, small_stream, upgrade__task=3), RunPaths(runs))
    assert plain.key != result.key
    assert result.reused == 2
    assert result.record.union[:2] == plain.record.union[:2]
    store = RunPaths(runs).open_store()
    old, new = (Commits(store, run.key).galleries(3) for run in (plain, result))
    assert all(torch.equal(a, b) for a, b in zip(old[:2], new[:2]))  # the index is not encoded again
    assert not torch.equal(old[2], new[2])
    commit = store.get_json("commits", f"{result.key}/task_003")
    assert {"weights", "upgrade.backbone"} <= set(commit["made_of"])
    assert commit["made_of"]["weights"] != commit["made_of"]["upgrade.backbone"]
    again = execute(made(manifest, small_stream, upgrade__task=0, upgrade__backbone="", seed=0), RunPaths(runs))
    assert numbers(again.record) == numbers(plain.record)


@pytest.mark.parametrize("queries", ["both", "map"])
def test_columns_of_ages_work_on_it(queries, manifest, small_stream, runs):
    record = execute(made(manifest, small_stream, upgrade__queries=queries, **AGES), RunPaths(runs)).record
    last = record.metrics[-1]
    assert last["stream/index/r1_0"] == last["stream/t2v/r1"]
    assert last["stream/index/gap"] == pytest.approx(last["stream/index/gained"] - last["stream/index/lost"])
    assert last["task_03/index/gap_own"] == 0
    updates = [[row.get(f"stream/index/update{name}") for name in ("", "_gained", "_lost")] for row in record.metrics]
    assert updates[0] == [None] * 3
    if queries == "both":  # the captions and videos of task 1 are those of the old model, before and after the upgrade
        assert updates[1] == [0.0] * 3
    assert all(change == pytest.approx(gained - lost) for change, gained, lost in updates[1:])
    assert set(record.aged_ranks) == {"0", "50", "100"}
    assert record.aged_ranks["0"] == record.ranks


def test_a_re_encoded_index_is_that_of_the_new_model_alone(manifest, small_stream, runs):
    """At 100 % no feature of the old model is searched, and both ways give the same ranks."""
    both, mapped = (
        execute(made(manifest, small_stream, upgrade__queries=queries, **AGES), RunPaths(runs)).record
        for queries in ("both", "map")
    )
    assert both.aged_ranks["100"] == mapped.aged_ranks["100"]
    assert both.aged_ranks["0"] != mapped.aged_ranks["0"]


def test_own_galleries_of_old_tasks_are_answered_by_the_old_model_as_before(manifest, small_stream, runs):
    """The scale of a part changes no rank within it, and the old model changes no more."""
    record = execute(made(manifest, small_stream), RunPaths(runs)).record
    assert [row[0] for row in record.own] == [record.own[0][0]] * 3


def test_a_model_of_two_backbones_cannot_be_queried(manifest, small_stream, runs):
    experiment = made(manifest, small_stream)
    result = execute(experiment, RunPaths(runs))
    commits = Commits(RunPaths(runs).open_store(), result.key)
    assert len(restore_from_commits(experiment, commits, 1, small_stream).galleries) == 1
    with pytest.raises(ConfigError, match=r"model: after task 2 the run has two models \(upgrade\.task=2\)"):
        restore_from_commits(experiment, commits, 2, small_stream)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"upgrade__task": 4}, r"upgrade\.task: must be 2 to 3, the last task of small, got 4\."),
        ({"upgrade__task": 1}, r"upgrade\.task must be 2 or more, got 1\. Use 0 for no upgrade\."),
        ({"upgrade__backbone": ""}, r"upgrade\.task 2 needs the new backbone\. Add upgrade\.backbone=NAME\."),
        ({"upgrade__task": 0}, r"upgrade\.backbone tiny-clip-stem is not used\. Add upgrade\.task=N"),
        ({"method": "upper_bound"}, r"upgrade\.task: 2 needs an index that is never encoded again"),
        ({"method": "xpool"}, r"upgrade\.task: 2 needs captions and videos of one vector, .* unlike xpool\."),
        ({"evaluation__oracle_task": True}, r"evaluation\.oracle_task: cannot be used with upgrade\.task=2"),
        ({"evaluation__select": "best"}, r"evaluation\.select: cannot be used with upgrade\.task=2"),
    ],
)
def test_what_cannot_be_upgraded_is_refused_in_one_line(more, message, manifest, small_stream, runs):
    with pytest.raises(ConfigError, match=message) as error:
        execute(made(manifest, small_stream, **more), RunPaths(runs))
    assert "\n" not in str(error.value)


def test_old_tokens_of_a_caption_are_found_by_its_new_ones():
    def new(texts):
        return torch.tensor([[len(text), 9, 0, 0] for text in texts])

    def old(texts):
        return torch.tensor([[1, len(text), 7, 8, 0] for text in texts])

    tokens = TwoTokenizers(new, old, None)
    assert torch.equal(tokens(["a", "abc"]), new(["a", "abc"]))
    assert tokens.translate(torch.tensor([[3, 9], [1, 9]])).tolist() == [[1, 3, 7, 8], [1, 1, 7, 8]]
    cut = TwoTokenizers(new, old, 3)
    cut(["abc"])
    assert cut.translate(torch.tensor([[3, 9, 0]])).tolist() == [[1, 3, 8]]  # the end of text is kept
