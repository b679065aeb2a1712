"""Search spaces and searchers, without a cluster."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from ray import tune

from ctvr.orchestrator.config import build
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig
from ctvr.orchestrator.on_ray.search import (
    contains,
    count_trials,
    first_point,
    grid_points,
    grid_values,
    make_searcher,
    override_space,
    points_to_evaluate,
)
from ctvr.orchestrator.on_ray.search_space import SearchSpace
from tests.refusing import refused, refuses

SPACE = {"method.lr": tune.loguniform(1e-7, 1e-5), "method.layers": tune.choice([4, 8])}
PAPER = {"method.lr": 1e-6, "method.layers": 8}
WHOLE = SearchSpace(SPACE, PAPER, {})


def searching(**values: object) -> object:
    return build(SearchConfig, values, "search", dotted=False)


def listing(word: str) -> object:
    return override_space(SPACE, [word])


REFUSED: dict[str, tuple[Callable[[], object], str, dict[str, object]]] = {
    "searcher": (lambda: searching(searcher="tpee"), "'tpe'", {"settings": ("searcher",)}),
    "scheduler": (lambda: searching(scheduler="hyperbnd"), "'hyperband'", {"settings": ("scheduler",)}),
    "no trials": (lambda: searching(trials=0), "--trials 8", {"settings": ("trials",)}),
    "no bracket": (lambda: searching(bracket_size=0), "search.bracket_size=8", {"settings": ("bracket_size",)}),
    "confirm": (lambda: searching(confirm=-1), ">= 0", {"settings": ("confirm",)}),
    "one seed": (lambda: searching(confirm_seeds=1), ">= 2", {"settings": ("confirm_seeds",)}),
    "a word": (lambda: searching(trials="many"), "", {"where": "search.trials", "got": "many"}),
    "reduction": (lambda: searching(reduction_factor=1), ">= 2", {"settings": ("reduction_factor",)}),
    "mode": (lambda: searching(mode="mxa"), "'max'", {"where": "search"}),
    "one mode": (lambda: searching(metric="a,b"), "search.mode=max,min", {"where": "search"}),
    "a metric twice": (lambda: searching(metric="a,a", mode="max,min"), "names a metric twice", {"where": "search"}),
    "no grid": (lambda: grid_values("a", tune.sample_from(len), None), "--space a=VALUE,VALUE", {"where": "a"}),
    **{
        f"space {word}": (partial(listing, word), f"'{word}' is not name=VALUE,VALUE", {"where": "--space"})
        for word in ("method.lr", "method.lr=", "=1", "method.lr=,")
    },
}


@pytest.mark.wording
@pytest.mark.parametrize(("call", "said", "fields"), REFUSED.values(), ids=REFUSED)
def test_a_search_that_cannot_be_is_refused(call, said, fields):
    refused(call, said, **fields)


def test_a_grid_takes_listed_values_and_three_of_a_range():
    assert grid_values("a", tune.choice([3, 1]), None) == [3, 1]
    assert grid_values("a", tune.uniform(0.0, 1.0), 0.6) == [0.0, 0.6, 1.0]
    assert grid_values("a", tune.loguniform(1e-4, 1e-2), None) == pytest.approx([1e-4, 1e-3, 1e-2])
    assert grid_values("a", tune.randint(1, 10), None) == [1, 5, 9]


def test_a_grid_has_as_many_trials_as_points():
    search = SearchConfig(searcher="grid", trials=2)
    assert count_trials(search, WHOLE) == 6
    searcher = make_searcher(search, WHOLE, 4)
    assert len({str(searcher.suggest(str(number))) for number in range(6)}) == 6
    assert searcher.suggest("7") is None


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_the_papers_point_is_tried_first(searcher):
    made = make_searcher(SearchConfig(searcher=searcher), WHOLE, 4)
    assert made.suggest("0") == PAPER
    assert made.suggest("1") != PAPER


def test_a_value_that_is_not_searched_is_in_no_first_point():
    assert first_point(WHOLE, PAPER) == PAPER
    assert first_point(replace(WHOLE, space=override_space(SPACE, ["method.layers=2,4"])), PAPER) == {}
    assert first_point(WHOLE, {"method.lr": 1e-6}) == {}
    assert first_point(WHOLE, {**PAPER, "method.lr": 1e-3}) == {}


def test_a_search_tries_the_recommended_point_before_the_papers():
    recommended = {**PAPER, "method.lr": 4e-6, "method.other": 1}
    algorithm = make_searcher(SearchConfig(), SearchSpace(SPACE, PAPER, recommended), 4)
    assert [algorithm.suggest(str(number)) for number in range(2)] == [{**PAPER, "method.lr": 4e-6}, PAPER]
    assert points_to_evaluate(SearchSpace(SPACE, PAPER, PAPER), SearchConfig()) == [PAPER]


def test_listed_values_are_tried_in_their_order_if_the_trials_suffice_and_else_in_random_order():
    def tried(trials: int, seed: int) -> list[float]:
        space = {"method.lr": tune.choice([0.1 * number for number in range(20)])}
        listed = SearchSpace(space, {}, {}, listed=("method.lr",))
        points = points_to_evaluate(listed, SearchConfig(trials=trials, seed=seed))
        return [point["method.lr"] for point in points]

    assert tried(20, 0) == tried(20, 1) == sorted(tried(20, 0))
    assert sorted(tried(8, 0)) == sorted(tried(8, 1)) == tried(20, 0)
    assert max(tried(8, 0)[:8]) > 0.1 * 8
    assert tried(8, 0)[:8] != tried(8, 1)[:8]
    assert tried(8, 0) == tried(8, 0)


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (tune.choice([4, None]), [4, None], [5]),
        (tune.loguniform(1e-7, 1e-5), [1e-7, 1e-5], [1e-8, 1e-4, None, "1e-6"]),
        (tune.randint(1, 10), [1, 9], [0, 10, 1.5, None]),
    ],
)
def test_a_domain_holds_its_choices_and_what_lies_between_its_ends(domain, inside, outside):
    assert all(contains(domain, value) for value in inside)
    assert not any(contains(domain, value) for value in outside)


def test_a_trial_that_was_stopped_early_is_pruned_and_never_the_best():
    """In a recorded sweep, a gain of 15.62 after one task is not better than 13.75 after five."""
    searcher = make_searcher(SearchConfig(), SearchSpace(SPACE, {}, {}), 5)
    gains = {"a": [15.62, 7.81, 7.29, 9.38, 13.75], "b": [18.75, 12.5, 7.29, 10.16, 12.5], "c": [15.62]}
    for trial_id in [*gains, "lost"]:
        searcher.suggest(trial_id)
    for trial_id, values in gains.items():
        for task, gain in enumerate(values, start=1):
            searcher.on_trial_result(trial_id, {GAIN: gain, "task": task, "training_iteration": 1})
        searcher.on_trial_complete(trial_id, {GAIN: values[-1], "task": len(values)})
    searcher.on_trial_complete("lost", error=True)
    study = searcher.study
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL"]
    assert study.trials[0].intermediate_values == dict(enumerate(gains["a"], start=1))
    assert study.trials[2].intermediate_values == {1: 15.62}
    assert study.best_trial.number == 0


def test_the_same_seed_suggests_the_same_points():
    def points(seed: int) -> list[dict]:
        algorithm = make_searcher(SearchConfig(seed=seed), SearchSpace(SPACE, {}, {}), 4)
        return [algorithm.suggest(str(number)) for number in range(3)]

    assert points(1) == points(1)
    assert points(1) != points(2)


def test_space_words_replace_ranges_by_listed_values():
    changed = override_space(SPACE, ["method.layers=2,none", "method.name=a,b", "method.lr=1e-6"])
    assert changed["method.layers"].categories == [2, "none"]
    assert changed["method.name"].categories == ["a", "b"]
    assert changed["method.lr"].categories == [1e-6]
    assert override_space(SPACE, []) == SPACE


TREE = SearchSpace(
    {"a.depth": tune.choice([1, 2]), "a.rate": tune.loguniform(0.1, 1.0), "a.kind": tune.choice(["none", "cut"])},
    {},
    {"a.kind": "none", "a.rate": 0.3, "a.depth": 2},
    conditions={"a.rate": ("a.kind", ["cut"]), "a.depth": ("a.rate", [0.5, 1.0])},
)


def test_a_setting_with_a_condition_is_suggested_where_the_condition_holds():
    assert TREE.parents_first() == ["a.kind", "a.rate", "a.depth"]
    assert not TREE.applies("a.depth", {"a.kind": "none", "a.rate": 0.5})
    assert TREE.applies("a.depth", {"a.kind": "cut", "a.rate": 0.5})
    made = make_searcher(SearchConfig(trials=30, searcher="tpe"), TREE, 2)
    points = [made.suggest(str(number)) for number in range(30)]
    assert points[0] == {"a.kind": "none"}  # the recommended point
    assert {tuple(point) for point in points} == {("a.kind",), ("a.kind", "a.rate")}
    assert all(("a.rate" in point) == (point["a.kind"] == "cut") for point in points)
    for number, point in enumerate(points):
        made.on_trial_complete(str(number), {GAIN: point.get("a.rate", 0.0), "task": 2})
    later = [made.suggest(f"more{number}") for number in range(20)]
    assert sum(point["a.kind"] == "cut" for point in later) > 15  # it learns from points of both forms


def test_a_grid_has_each_point_with_conditions_once():
    space = {"a.kind": tune.choice(["none", "cut"]), "a.rate": tune.choice([1, 2, 3])}
    tree = SearchSpace(space, {}, {}, conditions={"a.rate": ("a.kind", ["cut"])})
    assert grid_points(tree) == [{"a.kind": "none"}, *({"a.kind": "cut", "a.rate": rate} for rate in (1, 2, 3))]


def test_what_is_not_a_number_is_a_failed_trial_for_the_searcher():
    made = make_searcher(SearchConfig(), WHOLE, 1)
    made.suggest("a")
    made.on_trial_complete("a", {GAIN: float("nan"), "task": 1})
    assert [trial.state.name for trial in made.study.trials] == ["FAIL"]


class Walk:
    """Suggests three points; the second one depends on the first's result."""

    def __init__(self, search: SearchConfig, space: SearchSpace, num_tasks: int) -> None:
        self.left, self.best = [0, 1, 2], 0.0
        self.metric = search.metric

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        return {"method.layers": [4, 8, 5][self.left.pop(0)]} if self.left else None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.best = max(self.best, result[self.metric])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        raise ZeroDivisionError("its own mistake")


@pytest.fixture
def _walk(monkeypatch):
    points = [EntryPoint(name, f"{__name__}:{name}", "ctvr.searchers") for name in ("Walk", "GAIN", "tpe")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "ctvr.searchers" else [])


@pytest.mark.usefixtures("_walk")
def test_a_searcher_of_another_package_is_checked_and_its_errors_are_one_line():
    made = make_searcher(build(SearchConfig, {"searcher": "Walk"}, "search", dotted=False), WHOLE, 4)
    assert made.suggest("a") == {"method.layers": 4}
    made.on_trial_result("a", {GAIN: 3.0, "task": 1})
    assert made.inner.best == 3.0
    assert made.suggest("b") == {"method.layers": 8}
    with refuses("search.searcher=Walk", "method.layers=5"):
        made.suggest("c")
    assert made.suggest("d") is None
    with refuses("ZeroDivisionError", "own", "mistake"):
        made.on_trial_complete("a", {GAIN: 1.0, "task": 4})
    with refuses("TypeError", "'str'", "callable"):
        make_searcher(SearchConfig(searcher="GAIN"), WHOLE, 4)
    assert make_searcher(SearchConfig(searcher="tpe"), WHOLE, 4).study  # ours
