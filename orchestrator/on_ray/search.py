"""Search spaces and searchers of Ray Tune."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from ray import tune
from ray.tune.search.sample import Categorical, Float, Integer, LogUniform

from ctvr.methods.plug_ins import installed
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import SEARCHERS, SearchConfig
from ctvr.orchestrator.on_ray.search_space import SearchSpace, parse_values, within
from ctvr.orchestrator.on_ray.successive_halving import SearcherProtocol
from ctvr.orchestrator.tracking.run_record import as_text

METHODS_OF_SEARCHER = ("suggest", "on_trial_result", "on_trial_complete")


def describe_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space as plain data: setting -> its `values`, or `low`, `high` and `log`; other domains are omitted."""
    found: dict[str, Any] = {}
    for name, domain in space.items():
        if isinstance(domain, Categorical):
            found[name] = {"values": [as_text(value) for value in domain.categories]}
        elif isinstance(domain, (Float, Integer)) and math.isfinite(domain.upper - domain.lower):
            is_log = isinstance(domain.get_sampler(), LogUniform)
            found[name] = {"low": domain.lower, "high": domain.upper, "log": is_log}
    return found


def grid_points(space: SearchSpace) -> list[dict[str, Any]]:
    """Return all points of a grid; values that exceed their bound (`SearchSpace.at_most`) are reduced to it.

    Raises:
        ConfigError: for a range without listed values.
    """
    listed = [grid_values(name, domain, space.paper.get(name)) for name, domain in space.space.items()]
    every = (space.applicable(dict(zip(space.space, values))) for values in itertools.product(*listed))
    return list({tuple(point.items()): point for point in (within(each, space.at_most) for each in every)}.values())


class GridSearcher:
    """Searcher that suggests all points of a grid in order."""

    def __init__(self, space: SearchSpace) -> None:
        self.points = grid_points(space)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        return self.points.pop(0) if self.points else None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Ignore results."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ignore results."""


def make_searcher(search: SearchConfig, space: SearchSpace, num_tasks: int) -> SearcherProtocol:
    """Create the searcher of one search. Built-in searchers first suggest the recommended and the paper's settings.

    Args:
        search: settings of the search.
        space: the search space.
        num_tasks: number of tasks of the stream, or of epochs if trials are compared after epochs.

    Raises:
        ConfigError: for a grid over a range without listed values, or a searcher of another package that cannot be
            created.
    """
    if search.searcher == "grid":
        return GridSearcher(space)
    if (point := installed("searchers", SEARCHERS).get(search.searcher)) is not None:
        return PluginSearcher(point, search, space, num_tasks)
    from ctvr.orchestrator.on_ray.optuna_searcher import OptunaSearcher  # the import takes a quarter of a second

    return OptunaSearcher(search, space, points_to_evaluate(space, search), num_tasks)


class PluginSearcher:
    """Searcher of another package, whose points are checked.

    Args:
        point: entry point `ctvr.searchers`: a callable of (search, space, num_tasks) that returns the searcher.
        search, space, num_tasks: see `make_searcher`.
    """

    def __init__(self, point: EntryPoint, search: SearchConfig, space: SearchSpace, num_tasks: int) -> None:
        self.name, self.space = f"search.searcher={point.name} ({point.value})", space
        self.inner: SearcherProtocol = self._call(lambda: point.load()(search, space, num_tasks))
        if missing := [name for name in METHODS_OF_SEARCHER if not callable(getattr(self.inner, name, None))]:
            raise ConfigError(f"its searcher lacks the method {missing[0]}. See docs/search.md.", self.name)

    def suggest(self, trial_id: str) -> Any:
        """Return the searcher's next point; None if the searcher has no further point.

        Raises:
            ConfigError: for a point outside the space.
        """
        point = self._call(lambda: self.inner.suggest(trial_id))
        if not isinstance(point, Mapping):
            return None
        for name, value in point.items():
            if name not in self.space.space or not contains(self.space.space[name], value):
                raise ConfigError(f"it suggests {name}={value}, which is outside the search space.", self.name)
        return within(self.space.applicable(point), self.space.at_most)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._call(lambda: self.inner.on_trial_result(trial_id, result))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._call(lambda: self.inner.on_trial_complete(trial_id, result, error))

    def _call(self, call: Callable[[], Any]) -> Any:
        """Call code of the searcher's package; convert its errors to a ConfigError, which ends the sweep."""
        try:
            return call()
        except Exception as error:
            raise ConfigError(f"{type(error).__name__}: {error}", f"{self.name} failed") from error


def points_to_evaluate(space: SearchSpace, search: SearchConfig) -> list[dict[str, Any]]:
    """Return the points to evaluate first: the recommended settings, and the paper's settings.

    They are followed by the fewest points that cover every value listed by the user. If these are more points than
    trials, the values are in random order, because in the listed order a search would try the first values only.
    """
    points: list[dict[str, Any]] = []
    for values in (space.recommended, space.paper):
        point = first_point(space, values)
        if point and point not in points:
            points.append(point)
    listed = {name: list(space.space[name].categories) for name in space.listed if name in space.space}
    left = {name: [v for v in values if all(p.get(name) != v for p in points)] for name, values in listed.items()}
    longest = max(map(len, left.values()), default=0)
    if len(points) + longest > search.trials:
        generator = random.Random(search.seed)
        left = {name: generator.sample(values, len(values)) for name, values in left.items()}
    for place in range(longest):
        chosen = {name: (values[place:] or listed[name])[0] for name, values in left.items()}
        full = first_point(space, {**space.recommended, **chosen})
        points += [full] if full and full not in points else []
    return points


def first_point(space: SearchSpace, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a point of the space; empty if a value is missing or outside its domain."""
    point = space.applicable({name: value for name, value in values.items() if name in space.space})
    is_inside = all(contains(space.space[name], value) for name, value in point.items())
    return point if is_inside and all(name in point or not space.applies(name, point) for name in space.space) else {}


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
    """Return the grid values of a domain: its choices, or both ends of a range and the paper's value or the middle.

    Raises:
        ConfigError: for any other domain.
    """
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, (Float, Integer)):
        low, high = domain.lower, domain.upper - (1 if isinstance(domain, Integer) else 0)
        is_log = "log" in type(domain.get_sampler()).__name__.lower()
        middle = paper if paper is not None else (math.sqrt(low * high) if is_log else (low + high) / 2)
        return sorted({type(low)(value) for value in (low, middle, high)})
    raise ConfigError("a grid needs listed values", name, remedy=f"Use --space {name}=VALUE,VALUE.")


def count_trials(search: SearchConfig, space: SearchSpace) -> int:
    """Return the number of trials of a search; for a grid, the number of its points."""
    return len(grid_points(space)) if search.searcher == "grid" else search.trials


def count_listed(space: SearchSpace) -> float:
    """Return the number of points of a space if the user listed the values of all settings, otherwise infinity."""
    return len(grid_points(space)) if set(space.listed) >= set(space.space) else math.inf


def override_space(space: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return a space in which `name=v1,v2` choices (`--space`) replace ranges; one value fixes a setting.

    Raises:
        ConfigError: if an argument has no `=` or no value.
    """
    changed = dict(space)
    for word in words:
        name, values = parse_values(word)
        changed[name] = tune.choice(values)
    return changed


def rates_around(value: float) -> Float:
    """Return a domain from a tenth to ten times a value, on a log scale."""
    domain: Float = tune.loguniform(value / 10, value * 10)
    return domain


def choices(values: Iterable[Any]) -> Categorical:
    """Return a domain of listed values."""
    return tune.choice(list(values))
