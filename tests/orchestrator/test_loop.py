"""The task loop: same numbers whatever happens in between, stored galleries, nothing trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from orchestrator.checkpoint import Commits, Record
from orchestrator.loop import Diverged
from orchestrator.run import Places, Result, execute, resolve
from orchestrator.streams import Stream


class Killed(Exception):
    """Stands for a process that dies."""


def settings(manifest: str, method: str = "clip4clip", **more: object) -> dict[str, object]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"method": method, "stream": manifest, **named}


def train(manifest: str, stream: Stream, runs: Path, **more: object) -> Result:
    return execute(resolve(settings(manifest, **more), stream.settings), Places(runs))


def same_weights(a: Result, b: Result) -> bool:
    mine, others = a.method.state_dict(), b.method.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def numbers(record: Record) -> tuple[object, ...]:
    return record.own, record.union, record.metrics, record.training, record.ranks, record.steps


def test_two_identical_runs_are_bit_identical(manifest, small_stream, runs):
    experiment = resolve(settings(manifest, "framefusion_moe"), small_stream.settings)
    first, second = (execute(experiment, Places(runs), fresh=True) for _ in range(2))
    assert numbers(first.record) == numbers(second.record)
    assert same_weights(first, second)


@pytest.mark.parametrize("method", ["clip4clip", "framefusion_moe", "upper_bound"])
def test_a_run_killed_after_a_task_ends_as_an_unbroken_one(method, manifest, small_stream, runs):
    experiment = resolve(settings(manifest, method), small_stream.settings)
    unbroken = execute(experiment, Places(runs), fresh=True)

    def die(task, record, seconds):
        if task.index == 1:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, Places(runs), report=die)
    resumed = execute(experiment, Places(runs))
    assert resumed.resumed == 2
    assert numbers(resumed.record) == numbers(unbroken.record)
    assert same_weights(resumed, unbroken)


def test_a_finished_run_trains_nothing_again(manifest, small_stream, runs):
    train(manifest, small_stream, runs)
    seen = []
    again = execute(
        resolve(settings(manifest), small_stream.settings), Places(runs), report=lambda *call: seen.append(call)
    )
    assert again.resumed == 3
    assert seen == []


def test_the_seed_decides_and_is_part_of_the_key(manifest, small_stream, runs):
    a, b = (train(manifest, small_stream, runs, seed=seed) for seed in (0, 1))
    assert a.key != b.key
    assert not same_weights(a, b)


def test_learning_rate_zero_is_the_zero_shot_model(manifest, small_stream, runs):
    tuned = train(manifest, small_stream, runs, optim__lr_scale=0.0)
    zero = train(manifest, small_stream, runs, method="zero_shot")
    assert tuned.record.own == zero.record.own
    assert all(row["stream/t2v/r1_gain"] == 0 for row in tuned.record.metrics)


def test_zero_shot_never_forgets_and_its_rows_repeat(manifest, small_stream, runs):
    record = train(manifest, small_stream, runs, method="zero_shot").record
    assert [row["stream/t2v/bwf"] for row in record.metrics] == [0, 0, 0]
    assert all(record.own[t][i] == record.own[i][i] for t in range(3) for i in range(t + 1))


def test_stored_galleries_are_never_recomputed_but_by_the_upper_bound(manifest, small_stream, runs):
    for method, is_stored in (("clip4clip", True), ("upper_bound", False)):
        result = train(manifest, small_stream, runs, method=method)
        commits = Commits(Places(runs).open_store(), result.key)
        before, after = commits.galleries(1)[0], commits.galleries(3)[0]
        assert torch.equal(before, after) is is_stored


def test_matrices_are_lower_triangular_and_complete(manifest, small_stream, runs):
    record = train(manifest, small_stream, runs).record
    for matrix in (record.own, record.union):
        assert [len(row) for row in matrix] == [1, 2, 3]
    assert record.own[0] == record.union[0]
    assert len(record.ranks) == 9
    assert record.done == 3


def test_a_diverged_run_says_where_and_what_to_lower(manifest, small_stream, runs):
    with pytest.raises(Diverged, match=r"task_0\d, epoch \d: the loss .* Lower the learning rates"):
        train(manifest, small_stream, runs, optim__lr_scale=1e30, optim__grad_clip="none")


def test_best_keeps_the_best_epoch_and_never_a_worse_one(manifest, small_stream, runs):
    last = train(manifest, small_stream, runs, optim__epochs=3)
    best = train(manifest, small_stream, runs, optim__epochs=3, evaluation__select="best")
    assert best.record.own[0][0] >= last.record.own[0][0]
    assert best.key != last.key


def test_gradient_accumulation_steps_less_often(manifest, small_stream, runs):
    plain = train(manifest, small_stream, runs)
    accumulated = train(manifest, small_stream, runs, optim__accumulate=2)
    assert accumulated.record.steps * 2 == plain.record.steps


def test_bf16_trains_and_scores_in_float32(manifest, small_stream, runs):
    record = train(manifest, small_stream, runs, precision="bf16").record
    assert record.done == 3
    assert all(0 <= row["stream/t2v/r1"] <= 100 for row in record.metrics)
