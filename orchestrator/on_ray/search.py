"""Search spaces and searchers of Ray Tune."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.sample import Categorical, Float, Integer, LogUniform

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import SearchConfig, SearchSpace, parse_values, within
from ctvr.orchestrator.tracking.run_record import as_text


class PerTaskResults(Searcher):
    """Passes results of complete trials to a searcher; a stopped trial counts as pruned, with its values per task.

    A gain after one task and a gain after five are not comparable: reported as a final result, the first would make
    the trial that was stopped early look best.

    Args:
        inner: Optuna's searcher, which treats a trial that ends without a value as pruned.
        num_tasks: of the stream, or epochs where trials are compared after epochs.
        at_most: setting -> the setting that bounds it.
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


def describe_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space as plain data: setting -> its listed `values`, or `low`, `high` and `log`; others are omitted."""
    found: dict[str, Any] = {}
    for name, domain in space.items():
        if isinstance(domain, Categorical):
            found[name] = {"values": [as_text(value) for value in domain.categories]}
        elif isinstance(domain, (Float, Integer)) and math.isfinite(domain.upper - domain.lower):
            is_log = isinstance(domain.get_sampler(), LogUniform)
            found[name] = {"low": domain.lower, "high": domain.upper, "log": is_log}
    return found


def grid_points(space: SearchSpace) -> list[dict[str, Any]]:
    """Return all points of a grid; points that exceed a bound are reduced to it.

    Raises:
        ConfigError: for a range without listed values.
    """
    listed = [grid_values(name, domain, space.paper.get(name)) for name, domain in space.space.items()]
    every = (within(dict(zip(space.space, values)), space.at_most) for values in itertools.product(*listed))
    return list({tuple(point.values()): point for point in every}.values())


class GridSearcher(Searcher):
    """Suggests all points of a grid in order."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self.points = grid_points(space)

    def suggest(self, trial_id: str) -> Any:
        return self.points.pop(0) if self.points else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ignore results."""


def make_searcher(search: SearchConfig, space: SearchSpace, num_tasks: int) -> Searcher:
    """Make the searcher of one search; it suggests one point at a time, the recommended and the paper's first.

    Args:
        search: settings of the search.
        space: the search space.
        num_tasks: of the stream, or epochs where trials are compared after epochs.

    Raises:
        ConfigError: for a grid over a range without listed values.
    """
    if search.searcher == "grid":
        return GridSearcher(space)
    return _optuna(search, space, points_to_evaluate(space) or None, num_tasks)


def _optuna(search: SearchConfig, space: SearchSpace, first: list[dict[str, Any]] | None, num_tasks: int) -> Searcher:
    """Make Optuna's searcher over a space; `first` are the points to evaluate first."""
    import warnings

    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise one line per study and trial
    with warnings.catch_warnings():  # constant_liar is experimental; it spreads concurrent trials
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        startup = max(3, search.trials // 3)
        sampler: Any = optuna.samplers.RandomSampler(seed=search.seed)
        if search.searcher in ("tpe", "grouped_tpe"):
            sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=startup, constant_liar=True)
        if is_grouped(search, space):
            from ctvr.orchestrator.on_ray.grouped_sampler import GroupedSampler

            sampler = GroupedSampler(sampler, space.later, search.group_size, len(first or ()))
    found = OptunaSearch.convert_search_space(dict(space.space))  # otherwise OptunaSearch does it, with a warning
    made = OptunaSearch(space=found, metric=search.metric, mode=search.mode, points_to_evaluate=first, sampler=sampler)
    return PerTaskResults(made, num_tasks, space.at_most)


def is_grouped(search: SearchConfig, space: SearchSpace) -> bool:
    """Return whether trials share their first task: requested, and some but not all settings are read later."""
    return search.searcher == "grouped_tpe" and 0 < len(set(space.later) & set(space.space)) < len(space.space)


def points_to_evaluate(space: SearchSpace) -> list[dict[str, Any]]:
    """Return the recommended point and the paper's, so that a search is never worse than either.

    They are followed by as few points as contain every value that the user listed.
    """
    points: list[dict[str, Any]] = []
    for values in (space.recommended, space.paper):
        point = first_point(space.space, values)
        if point and point not in points:
            points.append(point)
    listed = {name: list(space.space[name].categories) for name in space.listed if name in space.space}
    left = {name: [v for v in values if all(p[name] != v for p in points)] for name, values in listed.items()}
    for place in range(max(map(len, left.values()), default=0)):
        chosen = {name: (values[place:] or listed[name])[0] for name, values in left.items()}
        full = first_point(space.space, {**space.recommended, **chosen})
        points += [full] if full else []
    return points


def first_point(space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a point of the space; empty if one is missing, outside its range or not among its choices."""
    point = {name: value for name, value in values.items() if name in space}
    is_inside = all(contains(space[name], value) for name, value in point.items())
    return point if is_inside and set(point) == set(space) else {}


def contains(domain: Any, value: Any) -> bool:
    """Return whether a value is in a domain of Ray Tune: among its choices, or within its range."""
    if isinstance(domain, Categorical):
        return value in domain.categories
    if isinstance(domain, Integer):
        return isinstance(value, int) and domain.lower <= value < domain.upper
    if isinstance(domain, Float):
        return isinstance(value, (int, float)) and domain.lower <= value <= domain.upper
    return True


def grid_values(name: str, domain: Any, paper: Any) -> list[Any]:
    """Return the grid values of a domain: all choices; or lower end, the paper's value or the middle, and upper end."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, (Float, Integer)):
        low, high = domain.lower, domain.upper - (1 if isinstance(domain, Integer) else 0)
        is_log = "log" in type(domain.get_sampler()).__name__.lower()
        middle = paper if paper is not None else (math.sqrt(low * high) if is_log else (low + high) / 2)
        return sorted({type(low)(value) for value in (low, middle, high)})
    raise ConfigError(f"{name}: a grid needs listed values. Use --space {name}=VALUE,VALUE.")


def count_trials(search: SearchConfig, space: SearchSpace) -> int:
    """Return the number of trials of a search; for a grid, the number of its points."""
    return len(grid_points(space)) if search.searcher == "grid" else search.trials


def count_listed(space: SearchSpace) -> float:
    """Return the number of points of a space if the user listed all its values, else infinity."""
    return len(grid_points(space)) if set(space.listed) >= set(space.space) else math.inf


def override_space(space: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return a space in which `name=v1,v2` choices (`--space`) replace ranges; one value fixes a setting.

    Raises:
        ConfigError: if a word has no `=` or no value.
    """
    changed = dict(space)
    for word in words:
        name, values = parse_values(word)
        changed[name] = tune.choice(values)
    return changed


def choices(values: Iterable[Any]) -> Categorical:
    """Return a domain of listed values."""
    return tune.choice(list(values))
