"""Search spaces and searchers: without a cluster."""

from __future__ import annotations

import pytest
from ray import cloudpickle, tune
from ray.tune.experiment import Experiment

from orchestrator.config import build
from orchestrator.errors import ConfigError
from orchestrator.on_ray.plan import GAIN, SearchConfig, SearchSpace
from orchestrator.on_ray.search import (
    Limiter,
    Listed,
    count_trials,
    first_point,
    first_points,
    grid_values,
    holds,
    override_space,
    row_search,
    search_algorithm,
)

SPACE = {"method.lr": tune.loguniform(1e-7, 1e-5), "method.layers": tune.choice([4, 8])}
PAPER = {"method.lr": 1e-6, "method.layers": 8}
WHOLE = SearchSpace(SPACE, PAPER, {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"searcher": "tpee"}, "search: searcher: 'tpee' is none of tpe, random, grid, staged. Did you mean 'tpe'"),
        ({"scheduler": "hyperband"}, "scheduler: 'hyperband' is none of halving, asha, none"),
        ({"trials": 0}, "trials, grace_tasks, wave and keep must be >= 1"),
        ({"wave": 0}, "trials, grace_tasks, wave and keep must be >= 1"),
        ({"confirm": -1}, "confirm must be >= 0"),
        ({"confirm_seeds": 1}, "confirm_seeds >= 2"),
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
    algorithm, _ = search_algorithm(search, WHOLE, 4, 3)
    assert count_trials(search, WHOLE) == 6
    assert isinstance(algorithm, Listed)
    assert algorithm.max_concurrent == 3


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_the_papers_point_is_tried_first(searcher):
    algorithm, space = search_algorithm(SearchConfig(searcher=searcher), WHOLE, 4, 2)
    if searcher == "tpe":
        assert isinstance(algorithm, Limiter)
        assert algorithm.suggest("first") == PAPER
    else:
        algorithm.add_configurations([Experiment("a", _nothing, config=space, num_samples=2)])
        assert algorithm.next_trial().config == PAPER
        assert algorithm.next_trial().config != PAPER


def test_a_value_that_is_not_searched_is_in_no_first_point():
    assert first_point(SPACE, PAPER) == PAPER
    assert first_point(override_space(SPACE, ["method.layers=2,4"]), PAPER) == {}
    assert first_point(SPACE, {"method.lr": 1e-6}) == {}
    assert first_point(SPACE, {**PAPER, "method.lr": 1e-3}) == {}


def test_a_search_tries_the_recommended_point_before_the_papers():
    recommended = {**PAPER, "method.lr": 4e-6, "method.other": 1}
    algorithm, _ = search_algorithm(SearchConfig(), SearchSpace(SPACE, PAPER, recommended), 4, 3)
    assert [algorithm.suggest(str(number)) for number in range(2)] == [{**PAPER, "method.lr": 4e-6}, PAPER]
    assert first_points(SearchSpace(SPACE, PAPER, PAPER)) == [PAPER]


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


def test_a_trial_that_was_stopped_early_is_pruned_and_never_the_best():
    """The gains of a sweep that was recorded: 15.62 after one task is no better than 13.75 after five."""
    limiter, _ = search_algorithm(SearchConfig(), SearchSpace(SPACE, {}, {}), 5, 9)
    gains = {"a": [15.62, 7.81, 7.29, 9.38, 13.75], "b": [18.75, 12.5, 7.29, 10.16, 12.5], "c": [15.62]}
    for trial_id in [*gains, "lost"]:
        limiter.suggest(trial_id)
    for trial_id, values in gains.items():
        for task, gain in enumerate(values, start=1):
            limiter.on_trial_result(trial_id, {GAIN: gain, "task": task, "training_iteration": 1})
        limiter.on_trial_complete(trial_id, {GAIN: values[-1], "task": len(values)})
    limiter.on_trial_complete("lost", error=True)
    study = limiter.searcher.inner._ot_study
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL"]
    assert study.trials[0].intermediate_values == dict(enumerate(gains["a"], start=1))
    assert study.trials[2].intermediate_values == {1: 15.62}
    assert study.best_trial.number == 0


def test_the_same_seed_suggests_the_same_points():
    def points(seed: int) -> list[dict]:
        algorithm, _ = search_algorithm(SearchConfig(seed=seed), SearchSpace(SPACE, {}, {}), 4, 9)
        return [algorithm.suggest(str(number)) for number in range(3)]

    assert points(1) == points(1)
    assert points(1) != points(2)


def test_a_restored_searcher_keeps_the_limit_of_the_present_cluster():
    old = Listed(max_concurrent=8)
    old.add_configurations([Experiment("a", _nothing, config={"a": tune.grid_search([1, 2])})])
    new = Listed(max_concurrent=2)
    new.set_state(cloudpickle.loads(cloudpickle.dumps(old.get_state())))
    assert new.max_concurrent == 2
    limiter, _ = search_algorithm(SearchConfig(), WHOLE, 4, 2)
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


# ------------------------------------------------------------------------------------------- whole tables


def rows(*names: str) -> dict[str, SearchSpace]:
    return {name: SearchSpace(SPACE, PAPER, {**PAPER, "method.lr": 2e-6}) for name in names}


def test_rows_take_turns_until_each_has_its_trials():
    made = row_search(SearchConfig(trials=2), rows("a", "b"), 4, 4)
    found = [made.suggest(str(number)) for number in range(4)]
    assert [point["row"] for point in found] == ["a", "b", "a", "b"]
    assert [point["settings"]["method.lr"] for point in found] == [2e-6, 2e-6, 1e-6, 1e-6]
    assert made.suggest("4") is None  # four run
    made.on_trial_complete("0", {GAIN: 1.0})
    assert made.suggest("5") == "FINISHED"


def test_no_more_trials_run_at_once_than_the_cluster_holds():
    made = row_search(SearchConfig(trials=2), rows("a", "b"), 4, 1)
    assert made.suggest("0")["row"] == "a"
    assert made.suggest("1") is None
    made.on_trial_complete("0", error=True)
    assert made.suggest("2")["row"] == "b"  # a failed trial is one of the row's trials


@pytest.mark.parametrize("searcher", ["tpe", "random"])
def test_a_rows_search_learns_from_its_own_trials_alone_and_survives_a_restart(tmp_path, searcher):
    def tell(made: Limiter, trial_id: str) -> dict:
        point = made.suggest(trial_id)
        made.on_trial_result(trial_id, {GAIN: 1.0, "task": 1, "training_iteration": 1})
        made.on_trial_complete(trial_id, {GAIN: float(point["settings"]["method.layers"]), "task": 1})
        return point

    search = SearchConfig(trials=12, searcher=searcher)
    alone = row_search(search, rows("a"), 1, 1)
    both, restarted = row_search(search, rows("a", "b"), 1, 1), row_search(search, rows("a", "b"), 1, 1)
    expected = [tell(alone, f"a{number}")["settings"] for number in range(12)]
    found = []
    for number in range(12):
        if number == 6:
            both.save(str(tmp_path / "state"))
            restarted.restore(str(tmp_path / "state"))
            both = restarted
        found.append(tell(both, f"a{number}")["settings"])
        tell(both, f"b{number}")
    assert found == expected
    assert len({point["method.lr"] for point in found}) > 6


def test_a_grid_over_a_table_is_refused():
    with pytest.raises(ConfigError, match="rows of a table get equally many trials. Write tpe or random"):
        row_search(SearchConfig(searcher="grid"), rows("a"), 4, 1)
