"""ASHA by finished tasks: without a cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchestrator.on_ray.plan import GAIN, SearchConfig
from orchestrator.on_ray.schedulers import TaskHalving


def halving(num_tasks: int = 4, **search: object) -> TaskHalving:
    return TaskHalving(SearchConfig(**search), num_tasks)


def decide(made: TaskHalving, trial_id: str, task: int, gain: float, row: str = "") -> str:
    trial = SimpleNamespace(config={"row": row, "number": trial_id})
    return made.on_trial_result(None, trial, {"task": task, GAIN: gain})


def test_halving_compares_trials_of_one_row():
    made = TaskHalving(SearchConfig(), 4, ["a", "b"])
    assert decide(made, "1", 1, 5.0, "a") == "CONTINUE"
    assert decide(made, "2", 1, 1.0, "b") == "CONTINUE"
    assert decide(made, "3", 1, 4.0, "a") == "STOP"
    made.remember({"4": {1: 3.0}}, "b")
    assert decide(made, "5", 1, 1.5, "b") == "STOP"


def test_halving_stops_the_worse_half_after_the_same_task():
    made = halving()
    assert decide(made, "a", 1, 5.0) == "CONTINUE"
    assert decide(made, "b", 1, 1.0) == "STOP"
    assert decide(made, "c", 1, 6.0) == "CONTINUE"


def test_a_task_that_is_reported_again_decides_nothing():
    made = halving()
    decide(made, "a", 1, 5.0)
    decide(made, "c", 1, 4.0)
    assert [decide(made, "a", 1, -9.0), decide(made, "a", 1, 5.0)] == ["CONTINUE", "CONTINUE"]


def test_the_last_report_of_a_trial_never_stops_it():
    made = halving(num_tasks=4)
    for task in (1, 2):
        decide(made, "a", task, 5.0), decide(made, "b", task, 5.0)
    decide(made, "a", 4, 5.0)
    assert decide(made, "b", 4, 1.0) == "CONTINUE"


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_resumed_search_decides_as_the_unbroken_one(mode):
    seen = {"a": {1: 5.0, 2: 4.0}, "b": {1: 1.0}, "c": {1: 3.0, 2: 2.0}}
    unbroken, resumed = halving(mode=mode), halving(mode=mode)
    for task in (1, 2):
        for trial_id, scores in seen.items():
            if task in scores:
                decide(unbroken, trial_id, task, scores[task])
    resumed.remember(seen)
    for trial_id, task, gain in [("d", 1, 2.9), ("e", 1, 5.5), ("e", 2, 3.5), ("f", 1, 0.5), ("f", 2, 2.5)]:
        assert decide(resumed, trial_id, task, gain) == decide(unbroken, trial_id, task, gain)


def test_a_trial_passes_a_rung_with_the_best_share_of_those_before_it():
    made = halving(num_tasks=9, reduction=3)
    found = [decide(made, name, 1, value) for name, value in zip("abcdef", (1.0, 2.0, 3.0, 2.2, 4.0, 2.4))]
    assert found == ["CONTINUE", "CONTINUE", "CONTINUE", "STOP", "CONTINUE", "STOP"]
    assert decide(made, "c", 2, 0.0) == "CONTINUE"  # the next rung is after three tasks
    assert [decide(made, "c", 3, 1.0), decide(made, "e", 3, 0.5)] == ["CONTINUE", "STOP"]
    assert decide(halving(), "a", 1, float("nan")) == "CONTINUE"


def test_the_rule_is_that_of_rays_own_scheduler():
    import random

    from ray.tune.schedulers import ASHAScheduler

    rays = ASHAScheduler(time_attr="task", max_t=10, grace_period=1, reduction_factor=2, metric=GAIN, mode="max")
    ours, chance = halving(num_tasks=9), random.Random(0)
    for number in range(60):
        trial = SimpleNamespace(trial_id=str(number), config={"row": "", "number": number})
        rays.on_trial_add(None, trial)
        for task in range(1, 9):
            value = chance.random() * task
            decision = rays.on_trial_result(None, trial, {"task": task, GAIN: value})
            assert ours.on_trial_result(None, trial, {"task": task, GAIN: value}) == decision
            if decision == "STOP":
                break
