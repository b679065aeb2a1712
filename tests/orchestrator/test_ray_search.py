"""Search spaces, searchers and halving by tasks: without a cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray import cloudpickle, tune
from ray.tune.experiment import Experiment

from orchestrator.config import ConfigError, build
from orchestrator.ray_search import (
    GAIN,
    Limiter,
    Listed,
    SearchConfig,
    TaskHalving,
    count_trials,
    first_point,
    grid_values,
    holds,
    near_paper,
    override_space,
    scheduler,
    search_algorithm,
)

SPACE = {"method.lr": tune.loguniform(1e-7, 1e-5), "method.layers": tune.choice([4, 8])}
PAPER = {"method.lr": 1e-6, "method.layers": 8}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"searcher": "tpee"}, "search: searcher: 'tpee' is none of tpe, random, grid. Did you mean 'tpe'"),
        ({"scheduler": "hyperband"}, "scheduler: 'hyperband' is none of asha, none"),
        ({"trials": 0}, "trials and grace_tasks must be >= 1"),
        ({"trials": "many"}, "search.trials: .*'many'"),
        ({"reduction": 1}, "reduction >= 2"),
    ],
)
def test_a_search_that_cannot_be_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        build(SearchConfig, values, "search")


def test_a_grid_takes_listed_values_and_three_of_a_range():
    assert grid_values("a", tune.choice([3, 1]), None) == [3, 1]
    assert grid_values("a", tune.uniform(0.0, 1.0), 0.6) == [0.0, 0.6, 1.0]
    assert grid_values("a", tune.loguniform(1e-4, 1e-2), None) == pytest.approx([1e-4, 1e-3, 1e-2])
    assert grid_values("a", tune.randint(1, 10), None) == [1, 5, 9]
    with pytest.raises(ConfigError, match="a: a grid needs listed values. Write --space a=VALUE,VALUE"):
        grid_values("a", tune.sample_from(lambda spec: 1), None)


def test_a_grid_has_as_many_trials_as_points():
    search = SearchConfig(searcher="grid", trials=2)
    algorithm, space = search_algorithm(search, SPACE, PAPER, 3)
    assert count_trials(search, space) == 6
    assert isinstance(algorithm, Listed)
    assert algorithm.max_concurrent == 3


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_the_papers_point_is_tried_first(searcher):
    algorithm, space = search_algorithm(SearchConfig(searcher=searcher), SPACE, PAPER, 2)
    if searcher == "tpe":
        assert isinstance(algorithm, Limiter)
        assert algorithm.suggest("first") == PAPER
    else:
        algorithm.add_configurations([Experiment("a", _nothing, config=space, num_samples=2)])
        assert algorithm.next_trial().config == PAPER
        assert algorithm.next_trial().config != PAPER


def test_a_paper_value_that_is_not_searched_is_no_first_point():
    assert first_point(SPACE, PAPER) == PAPER
    assert first_point(override_space(SPACE, ["method.layers=2,4"]), PAPER) == {}
    assert first_point(SPACE, {"method.lr": 1e-6}) == {}


def test_presets_go_before_the_paper_where_the_space_holds_their_values():
    assert near_paper(SPACE, PAPER, {}) == PAPER
    assert near_paper(SPACE, PAPER, {"method.layers": 4, "data.num_frames": 24}) == {**PAPER, "method.layers": 4}
    assert near_paper(SPACE, PAPER, {"method.layers": 5, "method.lr": 1e-3}) == PAPER


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (tune.choice([4, None]), [4, None], [5]),
        (tune.loguniform(1e-7, 1e-5), [1e-7, 1e-5], [1e-8, 1e-4, None, "1e-6"]),
        (tune.randint(1, 10), [1, 9], [0, 10, 1.5, None]),
    ],
)
def test_a_domain_holds_its_choices_and_what_lies_between_its_ends(domain, inside, outside):
    assert all(holds(domain, value) for value in inside)
    assert not any(holds(domain, value) for value in outside)


def test_the_same_seed_suggests_the_same_points():
    def points(seed: int) -> list[dict]:
        algorithm, _ = search_algorithm(SearchConfig(seed=seed), SPACE, {}, 9)
        return [algorithm.suggest(str(number)) for number in range(3)]

    assert points(1) == points(1)
    assert points(1) != points(2)


def test_a_restored_searcher_keeps_the_limit_of_the_present_cluster():
    old = Listed(max_concurrent=8)
    old.add_configurations([Experiment("a", _nothing, config={"a": tune.grid_search([1, 2])})])
    new = Listed(max_concurrent=2)
    new.set_state(cloudpickle.loads(cloudpickle.dumps(old.get_state())))
    assert new.max_concurrent == 2
    limiter, _ = search_algorithm(SearchConfig(), SPACE, PAPER, 2)
    limiter.set_state({**limiter.get_state(), "max_concurrent": 8})
    assert limiter.max_concurrent == 2


def test_space_words_replace_ranges_by_listed_values():
    changed = override_space(SPACE, ["method.layers=2,none", "method.name=a,b", "method.lr=1e-6"])
    assert changed["method.layers"].categories == [2, "none"]
    assert changed["method.name"].categories == ["a", "b"]
    assert changed["method.lr"].categories == [1e-6]
    assert override_space(SPACE, []) == SPACE


@pytest.mark.parametrize("word", ["method.lr", "method.lr=", "=1", "method.lr=,"])
def test_a_space_word_without_values_is_refused(word):
    with pytest.raises(ConfigError, match="write name=VALUE,VALUE"):
        override_space(SPACE, [word])


def _nothing(config):
    """A trainable."""


def halving(num_tasks: int = 4, **search: object) -> TaskHalving:
    made = scheduler(SearchConfig(**search), num_tasks)
    assert isinstance(made, TaskHalving)
    made.set_search_properties(GAIN, search.get("mode", "max"))
    return made


def decide(made: TaskHalving, trial_id: str, task: int, gain: float) -> str:
    trial = SimpleNamespace(trial_id=trial_id)
    if trial_id not in made._trial_info:
        made.on_trial_add(None, trial)
    return made.on_trial_result(None, trial, {"task": task, GAIN: gain})


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


def test_no_scheduler_is_first_in_first_out():
    assert type(scheduler(SearchConfig(scheduler="none"), 3)).__name__ == "FIFOScheduler"
