"""Halving in a sliding window: comparisons and proposals by rules that are written here once more, independently."""

import math
import random
from itertools import takewhile

import pytest

from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig
from ctvr.orchestrator.on_ray.search import make_searcher
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving
from tests.orchestrator.on_ray.test_successive_halving import SPACE, TASKS, finish, gain, halving, numbers, run

RUNGS = (1, 2, 4)
PER_TRIAL = {4: (4 * 1 + 2 * 4) / 4, 6: (6 * 1 + 3 * 1 + 2 * 3) / 6}  # tasks, of 5, in a bracket of 4 or 6 trials


def comes_to(trials: list, k: int, task: int, size: int, lag: int) -> bool:
    """Return whether trial k (from 0) comes to a task, computed from results alone."""
    return all(passes(trials, k, rung, size, lag) for rung in takewhile(lambda rung: rung < task, RUNGS))


def passes(trials: list, k: int, rung: int, size: int, lag: int) -> bool:
    together = min(size, lag)  # the first trials are one bracket
    peers = range(together) if k < together else range(max(0, k - size + 1), k + 1)
    there = [j for j in peers if comes_to(trials, j, rung, size, lag)]
    scores = {j: gain(trials[j].point, rung) for j in there}
    better = sum(scores[j] > scores[k] or (scores[j] == scores[k] and j < k) for j in there)
    return better < max(math.ceil(len(there) / 2), min(len(there), 2) if k < together else 1)


@pytest.mark.parametrize(("size", "lag"), [(4, 2), (4, 4), (4, 7), (6, 3), (6, 30)])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_trial_is_compared_with_those_before_it_that_came_to_the_rung(size, lag, seed):
    made = halving(SearchConfig(trials=30, bracket_size=size, lag=lag, seed=seed, searcher="random"))
    run({"": made}, 7, seed)
    for trial in made.trials:
        k = trial.number - 1
        ends = [rung for rung in RUNGS if comes_to(made.trials, k, rung, size, lag)]
        stopped = next((rung for rung in ends if not passes(made.trials, k, rung, size, lag)), 0)
        assert trial.stopped == stopped
        assert max(trial.scores) == (stopped or TASKS)
    assert {trial.stopped for trial in made.trials} >= {0, 1, 2}


@pytest.mark.parametrize(("size", "lag"), [(4, 3), (4, 5), (6, 6)])
def test_each_trial_is_proposed_from_results_of_those_before_it(size, lag):
    made = halving(SearchConfig(trials=36, bracket_size=size, lag=lag, searcher="tpe"))
    run({"": made}, 5, 0)
    by_hand, points = make_searcher(made.search, SPACE, TASKS), []
    told: set[tuple[int, int]] = set()
    for number in range(1, 37):
        for task in (*RUNGS, TASKS):
            for trial in made.trials[: max(0, number - math.ceil(lag * (1 + (task - 1) / PER_TRIAL[size])))]:
                last = min(task, trial.stopped or TASKS)
                for each in range(1, last + 1):
                    result = {"task": each, GAIN: gain(trial.point, each)}
                    if (trial.number, each) not in told:
                        told.add((trial.number, each))
                        by_hand.on_trial_result(trial.name, result)
                        if each == (trial.stopped or TASKS):
                            by_hand.on_trial_complete(trial.name, result)
        points.append(by_hand.suggest(f"{number:05d}"))
    assert [trial.point for trial in made.trials] == points
    assert sum(trial.point == points[0] for trial in made.trials) < 3


def test_a_trial_does_not_wait_for_those_that_cannot_change_its_decision():
    made = halving(SearchConfig(trials=5, bracket_size=4, lag=4))
    first = made.next_segments()
    assert numbers(first) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    for trial, _ in first:
        made.report(trial, {"task": 1, GAIN: float(trial.number)}, 1)
        made.end(trial, 1)
    assert numbers(made.next_segments()) == [(3, TASKS), (4, TASKS), (5, 1)]  # the first trials are a bracket
    fifth = made.trials[4]
    made.report(fifth, {"task": 1, GAIN: 9.0}, 1)
    made.end(fifth, 1)
    assert numbers(made.next_segments()) == [(5, 2)]
    made.report(fifth, {"task": 2, GAIN: 9.0}, 2)
    made.end(fifth, 2)
    assert made.next_segments() == []  # of three, two continue: both others may be better
    made.report(made.trials[2], {"task": 2, GAIN: 1.0}, TASKS)
    assert numbers(made.next_segments()) == [(5, 4)]


def test_failed_trials_do_not_hold_up_those_after_them():
    made = halving(SearchConfig(trials=24, bracket_size=4, lag=5, searcher="random"))
    chance = random.Random(0)
    bad = {number for number in range(1, 25) if chance.random() < 0.4}
    while due := made.next_segments():
        for trial, until in due:
            if trial.number in bad:
                made.end(trial, until)
            else:
                finish(made, trial, until)
    assert {trial.number for trial in made.trials if trial.failed} == bad
    assert len(made.trials) == made.ended == 24
    assert made.segments_ahead() == 0


def test_the_model_learns_from_trials_that_still_run():
    made: SuccessiveHalving = halving(SearchConfig(trials=30, lag=4, bracket_size=4, searcher="tpe"))
    running = made.searcher.running.reported
    for _ in range(30):
        for trial, until in made.next_segments():
            if until == 1:
                finish(made, trial, until)
    states = [trial.state.name for trial in made.searcher.study.get_trials()]
    own = [each.number for each in made.searcher.trials.values() if each.number in running]
    assert "COMPLETE" not in states
    assert states.count("PRUNED") == len(own) > 2
