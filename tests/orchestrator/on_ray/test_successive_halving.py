"""Successive halving depends on results only, not on load, order of arrival or size of the cluster."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, tune
from ray.tune.search import ConcurrencyLimiter, Searcher

from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher
from ctvr.orchestrator.on_ray.journal import HalvingTrial, Journal
from ctvr.orchestrator.on_ray.optuna_searcher import leader_of
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig, TrialPlan
from ctvr.orchestrator.on_ray.search import make_searcher
from ctvr.orchestrator.on_ray.search_space import SearchSpace, is_grouped
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving

SPACE = SearchSpace(
    {
        "method.lr": tune.loguniform(1e-7, 1e-5),
        "method.layers": tune.choice([1, 2, 4]),
        "optim.epochs": tune.choice([1]),
    },
    {},
    {"method.lr": 1e-6, "method.layers": 4, "optim.epochs": 1},
)
TASKS = 5


def gain(point: Mapping[str, Any], task: int) -> float:
    """Return a synthetic result, best at lr = 3e-6 and few layers; the order of points changes with the task."""
    return 10 - abs(math.log10(point["method.lr"] / 3e-6)) * task - 0.1 * point["method.layers"] + task


def halving(
    search: SearchConfig,
    space: SearchSpace = SPACE,
    journal: Journal | None = None,
    row: str = "",
    resolve: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    epochs: int = 0,
) -> SuccessiveHalving:
    tasks = 1 if epochs else TASKS
    return SuccessiveHalving(
        make_searcher(search, space, epochs or TASKS), search, tasks, resolve, journal, row, epochs=epochs
    )


def run(
    made: dict[str, SuccessiveHalving],
    room: int,
    seed: int,
    fails: Callable[[Mapping[str, Any], int], bool] = lambda point, task: False,
    most: float = math.inf,
    score: Callable[[Mapping[str, Any], int], float] = gain,
) -> tuple[HalvingSearcher, list[tuple[str, int, int]]]:
    """Simulate a cluster that runs `room` segments, whose reports arrive in an order that `seed` determines.

    Returns the search and the segments that ended normally, (row, trial, until); after `most` tasks everything is
    killed.
    """
    plan = TrialPlan("s", "/nowhere", "", "", None, "/nowhere", {"method": "lora"})
    search = HalvingSearcher(made, dict.fromkeys(made, plan))
    limiter = ConcurrencyLimiter(search, max_concurrent=room)
    chance, alive, trained, number = random.Random(seed), {}, 0, 0
    ended: list[tuple[str, int, int]] = []
    while True:
        suggested = limiter.suggest(str(number))
        if isinstance(suggested, dict):
            alive[str(number)] = [suggested, 0]
            number += 1
            continue
        if not alive or trained >= most:
            assert suggested == Searcher.FINISHED or trained >= most
            return search, ended
        trial_id = chance.choice(list(alive))
        unit = next(iter(made.values())).unit
        point, until = alive[trial_id][0]["run"]["settings"], alive[trial_id][0]["run"][f"stop_after_{unit}"] or TASKS
        task = alive[trial_id][1] = alive[trial_id][1] + 1
        trained += 1
        result = {unit: task, GAIN: score(point, task), "reads": "method.lr,method.layers"}
        if fails(point, task):
            limiter.on_trial_complete(trial_id, error=True)
            del alive[trial_id]
            continue
        limiter.on_trial_result(trial_id, result)
        if task == until:
            limiter.on_trial_complete(trial_id, result)
            ended.append((alive[trial_id][0]["row"], alive[trial_id][0]["number"], until))
            del alive[trial_id]


def told(made: SuccessiveHalving) -> list[tuple[Any, ...]]:
    """Return everything that was reported to the searcher, trial by trial."""
    study = made.searcher.study
    return [(t.number, t.state.name, t.params, t.intermediate_values, t.values) for t in study.trials]


def decisions(made: SuccessiveHalving) -> list[tuple[Any, ...]]:
    return [(t.number, t.point, t.stopped, t.failed, max(t.scores, default=0)) for t in made.trials]


@pytest.mark.parametrize("epochs", [0, TASKS])
@pytest.mark.parametrize("rule", [{}, {"brackets_at_once": 2}, {"brackets_at_once": 3}, {"lag": 2}, {"lag": 6}])
@pytest.mark.parametrize("scheduler", ["halving", "none"])
def test_decisions_do_not_depend_on_the_order_of_results_or_capacity(scheduler, rule, epochs):
    search = SearchConfig(trials=14, bracket_size=5, scheduler=scheduler, **rule)
    found = []
    for room, seed in [(1, 0), (2, 1), (3, 2), (16, 3), (16, 4)]:
        made = {name: halving(search, row=name, epochs=epochs) for name in ("a", "b")}
        run(made, room, seed, fails=lambda point, task: point["method.layers"] == 2 and task == 2)
        found.append([(decisions(each), told(each)) for each in made.values()])
    assert all(each == found[0] for each in found)
    (first, second) = found[0]
    assert first == second  # a row of a table searches as it would alone
    assert len(first[0]) == 14
    states = [state for _, state, *_ in first[1]]
    assert {"COMPLETE", "FAIL"} <= set(states)
    assert ("PRUNED" in states) == (scheduler == "halving")


def test_epoch_rungs_decide_the_same_after_a_kill(tmp_path):
    search = SearchConfig(trials=12, bracket_size=6)
    assert halving(search, epochs=TASKS).rungs == [1, 2, 4]
    whole = halving(search, epochs=TASKS)
    _, segments = run({"": whole}, 3, 1)
    assert {trial.stopped for trial in whole.trials} == {0, 1, 2}
    assert all(max(trial.scores) == (trial.stopped or TASKS) for trial in whole.trials)
    killed = halving(search, journal=Journal(tmp_path / "journal.json"), epochs=TASKS)
    run({"": killed}, 3, 2, most=9)
    resumed = halving(search, journal=Journal(tmp_path / "journal.json"), epochs=TASKS)
    _, left = run({"": resumed}, 2, 3)
    assert decisions(resumed) == decisions(whole)
    assert told(resumed) == told(whole)
    assert len(left) < len(segments)  # those in the journal do not run again


def test_trial_that_ends_early_counts_with_its_final_result():
    made = halving(SearchConfig(trials=2, bracket_size=2, min_survivors=1), epochs=TASKS)
    (first, until), (second, _) = made.next_segments()
    assert until == 1
    made.report(first, {"epoch": 1, GAIN: 1.0}, until)
    made.end(first, until)
    made.report(second, {"task": 1, "epoch": TASKS, GAIN: 5.0, "reads": "method.lr"}, until)  # it trains nothing
    made.end(second, until)
    assert made.next_segments() == []
    assert (first.stopped, second.is_alive, second.failed) == (1, True, False)
    assert second.scores == dict.fromkeys(range(1, TASKS + 1), (5.0,))
    assert [made.finished_tasks(trial) for trial in (first, second)] == [0, 1]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_bracket_is_suggested_from_brackets_that_ended_before_it(at_once):
    search = SearchConfig(trials=20, bracket_size=4, brackets_at_once=at_once)
    made = halving(search)
    run({"": made}, 7, 1)
    by_hand = make_searcher(search, SPACE, TASKS)
    points: list[Any] = []
    for bracket in range(5):
        if bracket >= at_once:  # results of the first brackets, in order
            for trial in made.trials[4 * (bracket - at_once) :][:4]:
                last = trial.stopped or TASKS
                for task in range(1, last + 1):
                    by_hand.on_trial_result(str(trial.number - 1), {"task": task, GAIN: gain(trial.point, task)})
                by_hand.on_trial_complete(str(trial.number - 1), {"task": last, GAIN: gain(trial.point, last)})
        points += [by_hand.suggest(str(4 * bracket + number)) for number in range(4)]
    assert [trial.point for trial in made.trials] == points


def test_a_bracket_that_ends_first_waits_for_the_one_before_it():
    made = halving(SearchConfig(trials=12, bracket_size=2, scheduler="none", brackets_at_once=2))
    due = made.next_segments()
    assert numbers(due) == [(1, TASKS), (2, TASKS), (3, TASKS), (4, TASKS)]
    for trial, until in due[2:]:
        finish(made, trial, until)
    assert made.next_segments() == []
    assert made.ended == 0
    finish(made, *due[0])
    assert made.next_segments() == []
    finish(made, *due[1])
    assert numbers(made.next_segments()) == [(number, TASKS) for number in (5, 6, 7, 8)]
    assert made.ended == 4


def finish(made: SuccessiveHalving, trial: HalvingTrial, until: int) -> None:
    for task in range(1, until + 1):
        made.report(trial, {"task": task, GAIN: gain(trial.point, task)}, until)
    made.end(trial, until)


def test_as_many_processes_are_kept_as_segments_can_follow():
    made = halving(SearchConfig(trials=16, bracket_size=4))
    assert made.segments_ahead() == 0
    for trial, until in made.next_segments():
        finish(made, trial, until)
        assert made.segments_ahead() >= 2  # of four trials two pass the rung
    assert made.segments_ahead() == 2
    for trial, until in made.next_segments():
        assert made.segments_ahead() >= 4  # the next bracket
        finish(made, trial, until)
    while due := made.next_segments():
        for trial, until in due:
            finish(made, trial, until)
    assert made.segments_ahead() == 0


def numbers(due: list[tuple[HalvingTrial, int]]) -> list[tuple[int, int]]:
    return [(trial.number, until) for trial, until in due]


def scripted(values: list[float], **search: Any) -> SuccessiveHalving:
    """Return a grid whose trials score `values`, equally after every task."""
    space = SearchSpace({"x": tune.choice(list(range(len(values))))}, {}, {})
    config = SearchConfig(searcher="grid", bracket_size=len(values), **search)
    made = halving(config, space)
    run({"": made}, 3, 0, score=lambda point, task: values[point["x"]])
    return made


@pytest.mark.parametrize(
    ("values", "search", "stopped"),
    [
        ([1, 8, 3, 6, 5, 4, 7, 2], {}, [1, 0, 1, 2, 2, 1, 0, 1]),
        ([1, 8, 3, 6, 5, 4, 7, 2], {"min_survivors": 1}, [1, 0, 1, 2, 2, 1, 4, 1]),
        ([1, 8, 3, 6, 5, 4, 7, 2], {"reduction_factor": 3}, [1, 0, 1, 3, 1, 1, 0, 1]),
        ([1, 8, 3, 6, 5, 4, 7, 2], {"grace_tasks": 2}, [2, 0, 2, 4, 4, 2, 0, 2]),
        ([1, 8, 3, 6], {"mode": "min"}, [0, 1, 0, 1]),
        ([5, 5, 5, 5, 5], {"min_survivors": 1}, [0, 4, 2, 1, 1]),  # of equal trials the first continue
        ([math.nan, 1, 2], {"min_survivors": 1}, [1, 2, 0]),
        ([1, 2], {}, [0, 0]),
        ([1, 8, 3, 6], {"scheduler": "none"}, [0, 0, 0, 0]),
    ],
)
def test_the_best_share_passes_a_rung_and_of_equals_the_first(values, search, stopped):
    assert [trial.stopped for trial in scripted(values, **search).trials] == stopped


def test_a_rung_that_would_stop_no_trial_is_skipped():
    made = halving(SearchConfig(trials=4, bracket_size=4))
    due = made.next_segments()
    assert [until for _, until in due] == [1, 1, 1, 1]
    for trial, until in due:
        assert made.next_segments() == []  # until all have ended
        made.report(trial, {"task": 1, GAIN: float(trial.number)}, 1)
        made.end(trial, until)
    assert numbers(made.next_segments()) == [(3, TASKS), (4, TASKS)]


def test_trials_that_failed_are_counted_out():
    made = halving(SearchConfig(trials=4, bracket_size=4, min_survivors=1))
    for trial, until in made.next_segments():
        if trial.number > 2:
            made.report(trial, {"task": 1, GAIN: float(trial.number)}, 1)
        made.end(trial, until)
    due = made.next_segments()
    assert numbers(due) == [(4, TASKS)]  # of the two that are left, one
    made.end(*due[0])
    assert made.next_segments() == []
    assert [trial.failed for trial in made.trials] == [True, True, False, True]


# ------------------------------------------------------------------------------------- kills and what is known


@pytest.mark.parametrize("rule", [{"brackets_at_once": 1}, {"brackets_at_once": 2}, {"lag": 4}])
def test_killed_search_resumes_to_the_same_end(tmp_path, rule):
    search = SearchConfig(trials=12, bracket_size=4, **rule)
    whole, ended = halving(search), []
    _, needed = run({"": whole}, 2, 0)
    for seed in range(1, 100):
        made = halving(search, journal=Journal(tmp_path / "s" / "journal.json", "code"))
        search_, more = run({"": made}, 2, seed, most=9)
        ended += more
        if not search_.outcome("", 0.0).is_interrupted:
            break
    assert seed > 3
    assert sorted(ended) == sorted(needed)
    assert decisions(made) == decisions(whole)
    assert told(made) == told(whole)
    finished = halving(search, journal=Journal(tmp_path / "s" / "journal.json", "code"))
    assert run({"": finished}, 2, 0)[1] == []


@pytest.mark.parametrize("rule", [{"brackets_at_once": 2}, {"lag": 3}])
def test_a_search_killed_at_any_point_replays_its_journal(tmp_path, rule):
    search = SearchConfig(trials=9, bracket_size=4, searcher="tpe", **rule)
    whole = halving(search)
    _, ended = run({"": whole}, 3, 0)
    for most in range(sum(until for *_, until in ended) + 1):
        file = tmp_path / f"{most}.json"
        killed = halving(search, journal=Journal(file, "code"))
        run({"": killed}, 3, most, most=most)
        known = {(trial.number, task) for trial in killed.trials for task in trial.scores}
        resumed = halving(search, journal=Journal(file, "code"))
        _, left = run({"": resumed}, 2, most + 1)
        assert (decisions(resumed), told(resumed)) == (decisions(whole), told(whole))
        assert bool(known) is bool(most)
        assert not [(number, until) for _, number, until in left if (number, until) in known]


def test_results_of_other_sources_are_ignored(tmp_path):
    search = SearchConfig(trials=2)
    first = halving(search, journal=Journal(tmp_path / "journal.json", "old"))
    run({"": first}, 1, 0)
    assert halving(search, journal=Journal(tmp_path / "journal.json", "old")).next_segments() == []
    assert len(halving(search, journal=Journal(tmp_path / "journal.json", "new")).next_segments()) == 2


def test_an_interrupted_search_says_so_and_a_whole_one_counts_its_trials():
    search = SearchConfig(trials=8, bracket_size=4)
    found, ended = run({"": halving(search)}, 2, 0)
    outcome = found.outcome("", 1.0)
    assert (outcome.trials, outcome.complete, outcome.stopped, outcome.failed) == (8, 4, 4, 0)
    assert not outcome.is_interrupted
    assert (outcome.tasks, len(ended)) == (4 * 1 + 4 * 5, 8 + 4)
    found, _ = run({"": halving(search)}, 2, 0, most=9)
    assert found.outcome("", 1.0).is_interrupted


def test_ray_can_pickle_a_search_with_all_that_it_holds(tmp_path):
    found, _ = run({"": halving(SearchConfig(trials=4), journal=Journal(tmp_path / "j.json"))}, 2, 0)
    assert cloudpickle.loads(cloudpickle.dumps(found)).outcome("", 0.0) == found.outcome("", 0.0)


# ------------------------------------------------------------------------------- stages


LATER_TASKS = ("method.beta", "method.lr")
STAGES = SearchSpace(
    {
        "method.lr_first": tune.loguniform(1e-6, 1e-4),
        "method.layers": tune.choice([1, 2, 4, 8]),
        "method.lr": tune.loguniform(1e-7, 1e-5),
        "method.beta": tune.uniform(0.0, 0.9),
    },
    {"method.lr_first": 2e-5, "method.layers": 4, "method.lr": 4e-6, "method.beta": 0.6},
    {"method.lr_first": 2e-6, "method.layers": 4, "method.lr": 1e-6, "method.beta": 0.6},
    later=LATER_TASKS,
)


def executions(search: SearchConfig, room: int, seed: int) -> tuple[list[tuple[Any, ...]], int, int]:
    """Return the decisions of a search, the tasks that its trials finished, and those that no trial trained.

    A segment adopts finished tasks, as `keys/prefix_reuse.py` does: task 1 of a trial with the same values of the
    settings that task 1 reads.
    """
    later = STAGES.later if is_grouped(search, STAGES) else ()
    made = SuccessiveHalving(make_searcher(search, STAGES, TASKS), search, TASKS, dict, later=later)
    plan = TrialPlan("s", "/nowhere", "", "", None, "/nowhere", {"method": "lora"})
    cluster, chance = HalvingSearcher({"": made}, {"": plan}), random.Random(seed)
    trained: dict[Any, int] = {}  # of what task 1 reads: how often it was trained
    alive: dict[str, list[Any]] = {}
    for number in range(10**6):
        suggested = cluster.suggest(str(number)) if len(alive) < room else None
        if isinstance(suggested, dict):
            run = suggested["run"]
            first = tuple(sorted((k, v) for k, v in run["settings"].items() if k not in LATER_TASKS))
            known = max(made.trials[suggested["number"] - 1].scores, default=0)
            taken = known or int(trained.get(first, 0) > 0)
            alive[str(number)] = [run["settings"], run["stop_after_task"] or TASKS, first, known, taken]
            continue
        if not alive:
            break
        name = chance.choice(list(alive))
        point, until, first, known, taken = alive.pop(name)
        for task in range(known + 1, until + 1):
            value = -abs(math.log10(point["method.lr_first"] / 1e-5)) - 0.1 * point["method.layers"]
            value -= 0.0 if task == 1 else abs(point["method.beta"] - 0.3) + abs(math.log10(point["method.lr"] / 1e-6))
            cluster.on_trial_result(name, {"task": task, GAIN: value, "reused": int(taken == 1 and not known)})
            if task == 1 and not taken:
                trained[first] = trained.get(first, 0) + 1
        cluster.on_trial_complete(name)
    return decisions(made), cluster.outcome("", 0.0).tasks, len(made.trials) - sum(trained.values())


def test_a_search_of_24_trials_is_grouped_and_saves_30_percent():
    assert [SearchConfig(trials=trials).searcher for trials in (8, 16)] == ["tpe", "grouped_tpe"]  # make sweep has 8
    found = [executions(SearchConfig(trials=24), room, seed) for room, seed in [(1, 0), (2, 1), (8, 2), (24, 3)]]
    assert all(each == found[0] for each in found)
    decided, tasks, saved = found[0]
    assert len(decided) == 24
    assert saved == 18  # in each bracket 2 of 8 train task 1
    assert saved >= 0.3 * tasks
    points = [point for _, point, *_ in decided]
    for bracket in range(3):
        groups = [
            tuple(point[name] for name in STAGES.space if name not in LATER_TASKS)
            for point in points[8 * bracket :][:8]
        ]
        assert sorted(groups.count(group) for group in set(groups)) == [4, 4]
    assert len({point["method.beta"] for point in points}) == 23  # all sampled, except the two points evaluated first
    assert executions(SearchConfig(trials=24, searcher="tpe"), 8, 0)[2] == 0


def test_if_a_leader_fails_the_next_of_its_group_trains_task_1():
    search = SearchConfig(trials=16)
    made = SuccessiveHalving(make_searcher(search, STAGES, TASKS), search, TASKS, dict, later=LATER_TASKS)
    due = made.next_segments()
    assert numbers(due) == [(1, 1), (2, 1)]
    made.end(*due[0])
    made.report(due[1][0], {"task": 1, GAIN: 0.0}, 1)
    assert made.segments_ahead() >= 6  # those that wait for the first task
    made.end(*due[1])
    assert numbers(made.next_segments()) == [(3, 1), (6, 1), (7, 1), (8, 1)]  # the others of 2 adopt its first task


@pytest.mark.parametrize("first", [0, 1, 2])
def test_groups_partition_the_trials_and_points_tried_first_lead(first: int):
    groups: dict[int, list[int]] = {}
    for number in range(24):
        groups.setdefault(leader_of(number, 4, first), []).append(number)
    assert all(members[0] == leader and len(members) == 4 for leader, members in groups.items())
    assert list(range(first)) == list(groups)[:first]


# ------------------------------------------------------------------------------- points that train the same model


def test_equal_settings_are_one_trial_and_an_exhausted_space_ends():
    space = SearchSpace({"method.layers": tune.choice([1, 2, 4]), "method.lr": tune.choice([1e-6])}, {}, {})

    def clipped(point: Mapping[str, Any]) -> dict[str, Any]:
        return {**point, "method.layers": min(point["method.layers"], 2)}

    made = halving(SearchConfig(trials=12, bracket_size=6), space, resolve=clipped)
    run({"": made}, 2, 0)
    assert sorted(trial.settings["method.layers"] for trial in made.trials) == [1, 2]
    assert made.repeated > 0
    assert [state for _, state, *_ in told(made)].count("COMPLETE") == 2  # nor does the searcher count it twice


def test_what_differs_only_in_settings_that_no_run_reads_is_one_trial():
    space = SearchSpace({**SPACE.space, "method.lr": tune.choice([1e-6]), "idle": tune.uniform(0, 1)}, {}, {})
    made = halving(SearchConfig(trials=20, bracket_size=4, scheduler="none"), space)
    run({"": made}, 2, 0)
    assert len({trial.point["method.layers"] for trial in made.trials}) == 3
    first = {trial.point["method.layers"] for trial in made.trials[:4]}  # then it is known what runs read
    assert not first & {trial.point["method.layers"] for trial in made.trials[4:]}
    complete = [params for _, state, params, *_ in told(made) if state == "COMPLETE"]
    assert len(complete) == len({params["method.layers"] for params in complete})  # nor counted twice within it


@pytest.mark.parametrize("at_once", [1, 2])
def test_resumed_search_ignores_later_results_of_its_wave(tmp_path, at_once):
    """Two trials of a bracket that train the same model both run, although the journal has a result of the first."""
    space = SearchSpace({**SPACE.space, "method.lr": tune.choice([1e-6]), "idle": tune.uniform(0, 1)}, {}, {})
    search = SearchConfig(trials=18, bracket_size=6, scheduler="none", brackets_at_once=at_once)
    whole = halving(search, space)
    run({"": whole}, 2, 0)
    layers = [trial.point["method.layers"] for trial in whole.trials[:6]]
    assert len(set(layers)) < len(layers)
    run({"": halving(search, space, Journal(tmp_path / "journal.json", "code"))}, 2, 0, most=4 * TASKS)
    resumed = halving(search, space, Journal(tmp_path / "journal.json", "code"))
    run({"": resumed}, 2, 0)
    assert decisions(resumed) == decisions(whole)


def test_settings_that_were_read_count_once_a_trial_has_trained_all_tasks():
    made = halving(SearchConfig(trials=2, bracket_size=2))
    trial = made.next_segments()[0][0]
    made.report(trial, {"task": 1, GAIN: 1.0, "reads": "method.lr"}, 1)  # as far as a rung
    assert trial.reads == ()
    made.report(trial, {"task": TASKS, GAIN: 1.0, "reads": "method.lr,method.layers"}, TASKS)
    assert trial.reads == ("method.lr", "method.layers")


def test_a_stopped_trial_is_reported_once():
    heard: list[Any] = []
    listener = SimpleNamespace(stopped=lambda *what: heard.append(what), trials_ended=lambda *what: None)
    plan = TrialPlan("s", str(Path("/nowhere")), "", "", None, "/nowhere", {"method": "lora"})
    made = halving(SearchConfig(trials=4))
    search = HalvingSearcher({"": made}, {"": plan}, listener)
    search.schedule()
    for trial in made.trials:
        made.report(trial, {"task": 1, GAIN: float(trial.number)}, 1)
        made.end(trial, 1)
    search.queues[""].clear()
    search.schedule(), search.schedule()
    assert [(row, number, task) for row, number, _, task in heard] == [("", 1, 1), ("", 2, 1)]
    assert heard[0][2].startswith("lora-01-")


LAYERS = "stream/cost/video_gmacs"
BOTH = SearchConfig(trials=16, searcher="tpe", metric=f"{GAIN},{LAYERS}", mode="max,min")


def search_front(journal: Journal | None = None, most: float = math.inf, lag: int = 0) -> tuple[SuccessiveHalving, int]:
    """Run a search for the best gain with the fewest layers; return it and the number of trained tasks."""
    made, trained = halving(replace(BOTH, lag=lag), journal=journal), 0
    while (due := made.next_segments()) and trained < most:
        for trial, until in reversed(due):
            for task in range(max(trial.scores, default=0) + 1, until + 1):
                point = trial.point
                result = {
                    "task": task,
                    GAIN: gain(point, task) + point["method.layers"],
                    LAYERS: point["method.layers"],
                }
                made.report(trial, {**result, "reads": "method.lr,method.layers"}, until)
                trained += 1
            made.end(trial, until)
    return made, trained


def test_a_search_with_two_objectives_keeps_trials_that_none_dominates():
    made, _ = search_front()
    for first in range(0, 16, 8):
        trials = made.trials[first : first + 8]
        for trial in trials:
            better = [
                other
                for other in trials
                if other.scores[1][0] >= trial.scores[1][0] and other.scores[1][1] <= trial.scores[1][1]
            ]
            if trial.stopped != 1:
                assert len(better) <= 4  # of eight trials four pass the first rung
            if len(better) > 4:
                assert trial.stopped == 1
    complete = [trial for trial in made.trials if TASKS in trial.scores]
    assert len({trial.point["method.layers"] for trial in complete}) > 1
    best = {trial.number for trial in made.searcher.study.best_trials}
    names = [made.trials[number].name for number in range(16)]
    assert best
    assert all(made.trials[number].stopped == 0 for number in range(16) if int(names[number]) - 1 in best)


@pytest.mark.parametrize("lag", [0, 4])
def test_a_search_with_two_objectives_goes_on_from_its_journal_to_the_same_decisions(tmp_path, lag):
    whole, trained = search_front(Journal(tmp_path / "whole.json", "code"), lag=lag)
    _, before = search_front(Journal(tmp_path / "part.json", "code"), most=trained // 2, lag=lag)
    again, after = search_front(Journal(tmp_path / "part.json", "code"), lag=lag)
    assert decisions(again) == decisions(whole)
    assert before + after == trained


def test_what_reports_an_objective_too_few_failed():
    made = halving(BOTH)
    ((trial, until), *_) = made.next_segments()
    made.report(trial, {"task": until, GAIN: 3.0}, until)
    made.end(trial, until)
    assert trial.failed
