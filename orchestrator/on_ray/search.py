"""What is searched and by whom: search spaces and searchers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.sample import Categorical, Float, Integer

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import SearchConfig, SearchSpace, parse_values, within


class PerTaskResults(Searcher):
    """Tells a searcher of whole trials alone what they are worth; a stopped one is pruned, with its value by task.

    A gain after one task and a gain after five are no values of one scale: told as a result, the first would make the
    trial that was stopped early look best.

    Args:
        inner: Optuna's searcher, which takes a trial that ends without a value as pruned.
        num_tasks: of the stream.
        at_most: setting -> the setting that it cannot exceed.
    """

    def __init__(self, inner: Searcher, num_tasks: int, at_most: Mapping[str, str]) -> None:
        super().__init__(metric=inner.metric, mode=inner.mode)
        self.inner, self.num_tasks, self.at_most = inner, num_tasks, at_most

    def suggest(self, trial_id: str) -> Any:
        point = self.inner.suggest(trial_id)
        return within(point, self.at_most) if isinstance(point, Mapping) else point

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.inner.on_trial_result(trial_id, {**result, "training_iteration": result["task"]})

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        is_whole = result is not None and result.get("task", 0) >= self.num_tasks
        self.inner.on_trial_complete(trial_id, result=result if is_whole else None, error=error)


def grid_points(space: SearchSpace) -> list[dict[str, Any]]:
    """Every point of a grid; those that exceed a bound are the one that reaches it.

    Raises:
        ConfigError: over a range that has no listed values.
    """
    listed = [grid_values(name, domain, space.paper.get(name)) for name, domain in space.space.items()]
    every = (within(dict(zip(space.space, values)), space.at_most) for values in itertools.product(*listed))
    return list({tuple(point.values()): point for point in every}.values())


class GridSearcher(Searcher):
    """Every point of a grid, one after another."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self.points = grid_points(space)

    def suggest(self, trial_id: str) -> Any:
        return self.points.pop(0) if self.points else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A grid learns nothing."""


def make_searcher(search: SearchConfig, space: SearchSpace, num_tasks: int) -> Searcher:
    """Who suggests the points of one search, one at a time; what is known to work comes first.

    Args:
        search: what was asked for.
        space: what is searched.
        num_tasks: of the stream.

    Raises:
        ConfigError: if a grid is asked for over a range that has no listed values.
    """
    if search.searcher == "grid":
        return GridSearcher(space)
    return _optuna(search, space, points_to_evaluate(space) or None, num_tasks)


def _optuna(search: SearchConfig, space: SearchSpace, first: list[dict[str, Any]] | None, num_tasks: int) -> Searcher:
    """Optuna's searcher over a space; `first` are the points tried first."""
    import warnings

    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line for each study and trial otherwise
    with warnings.catch_warnings():  # constant_liar is called experimental; it spreads trials that run at once
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        startup = max(3, search.trials // 3)
        sampler: Any = optuna.samplers.RandomSampler(seed=search.seed)
        if search.searcher in ("tpe", "grouped_tpe"):
            sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=startup, constant_liar=True)
        if is_grouped(search, space):
            from ctvr.orchestrator.on_ray.grouped_sampler import GroupedSampler

            sampler = GroupedSampler(sampler, space.later, search.group_size, len(first or ()))
    found = OptunaSearch.convert_search_space(dict(space.space))  # which it would do itself, with a warning
    made = OptunaSearch(space=found, metric=search.metric, mode=search.mode, points_to_evaluate=first, sampler=sampler)
    return PerTaskResults(made, num_tasks, space.at_most)


def is_grouped(search: SearchConfig, space: SearchSpace) -> bool:
    """Whether trials share their first task: asked for, and the space has settings on both sides of it."""
    return search.searcher == "grouped_tpe" and 0 < len(set(space.later) & set(space.space)) < len(space.space)


def points_to_evaluate(space: SearchSpace) -> list[dict[str, Any]]:
    """What a search tries first: the recommended point, so that it never ends below it, and the paper's."""
    points: list[dict[str, Any]] = []
    for values in (space.recommended, space.paper):
        point = first_point(space.space, values)
        if point and point not in points:
            points.append(point)
    return points


def first_point(space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as a point of the space; empty if one is unknown, out of its range or not among listed values."""
    point = {name: value for name, value in values.items() if name in space}
    is_inside = all(contains(space[name], value) for name, value in point.items())
    return point if is_inside and set(point) == set(space) else {}


def contains(domain: Any, value: Any) -> bool:
    """Whether a value lies in a domain of Ray Tune: among its choices, or between its ends."""
    if isinstance(domain, Categorical):
        return value in domain.categories
    if isinstance(domain, Integer):
        return isinstance(value, int) and domain.lower <= value < domain.upper
    if isinstance(domain, Float):
        return isinstance(value, (int, float)) and domain.lower <= value <= domain.upper
    return True


def grid_values(name: str, domain: Any, paper: Any) -> list[Any]:
    """Values of a grid: all of a choice; ends, the paper's value and a middle of a range."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, (Float, Integer)):
        low, high = domain.lower, domain.upper - (1 if isinstance(domain, Integer) else 0)
        is_log = "log" in type(domain.get_sampler()).__name__.lower()
        middle = paper if paper is not None else (math.sqrt(low * high) if is_log else (low + high) / 2)
        return sorted({type(low)(value) for value in (low, middle, high)})
    raise ConfigError(f"{name}: a grid needs listed values. Write --space {name}=VALUE,VALUE.")


def count_trials(search: SearchConfig, space: SearchSpace) -> int:
    """How many trials a search has; a grid has as many as it has points."""
    return len(grid_points(space)) if search.searcher == "grid" else search.trials


def override_space(space: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A space with `name=v1,v2` choices put in place of its ranges (`--space`); one value fixes a setting.

    Raises:
        ConfigError: if a word has no `=` or no value.
    """
    changed = dict(space)
    for word in words:
        name, values = parse_values(word)
        changed[name] = tune.choice(values)
    return changed


def choices(values: Iterable[Any]) -> Categorical:
    """A domain of listed values."""
    return tune.choice(list(values))
