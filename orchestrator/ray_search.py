"""What Ray Tune searches: search spaces, searchers, and halving by finished tasks.

The searchers and the limiter below keep the limit they were made with when a sweep is restored (Tune
would bring back the old cluster's), and the scheduler is told what earlier processes learned (Tune
forgets it).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher
from ray.tune.search.sample import Categorical, Float, Integer

from orchestrator.config import ConfigError, suggest

GAIN = "stream/t2v/r1_gain"


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How settings are searched (`search.*` on the command line)."""

    trials: int = 8
    searcher: str = "tpe"  # tpe (Optuna), random, grid
    scheduler: str = "asha"  # asha, none
    grace_tasks: int = 1  # asha: tasks that every trial may finish
    reduction: int = 2  # asha: 1 / reduction of the trials pass a rung
    seed: int = 0  # of the searcher
    metric: str = GAIN
    mode: str = "max"

    def __post_init__(self) -> None:
        for name, known in (
            ("searcher", ("tpe", "random", "grid")),
            ("scheduler", ("asha", "none")),
            ("mode", ("max", "min")),
        ):
            if getattr(self, name) not in known:
                hint = suggest(getattr(self, name), known)
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of {', '.join(known)}.{hint}")
        if self.trials < 1 or self.grace_tasks < 1 or self.reduction < 2:
            raise ValueError("trials and grace_tasks must be >= 1, reduction >= 2.")


class Listed(BasicVariantGenerator):
    """Random and grid search, and lists of configurations; its limit is not the restored one."""

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state({**state, "max_concurrent": self.max_concurrent})


class Limiter(ConcurrencyLimiter):
    """A limit around a searcher; it is not the restored one."""

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state({**state, "max_concurrent": self.max_concurrent})


def search_algorithm(
    search: SearchConfig, space: Mapping[str, Any], paper: Mapping[str, Any], concurrent: int = 1
) -> tuple[Searcher | SearchAlgorithm, dict[str, Any]]:
    """The searcher and the parameter space it wants. The paper's own point is always tried first.

    Args:
        search: what was asked for.
        space: setting -> domain of Ray Tune.
        paper: setting -> the paper's value.
        concurrent: trials at once.

    Raises:
        ConfigError: if a grid is asked for over a range that has no listed values.
    """
    complete = [point] if (point := first_point(space, paper)) else None
    if search.searcher == "grid":
        grid = {name: tune.grid_search(grid_values(name, domain, paper.get(name))) for name, domain in space.items()}
        return Listed(random_state=search.seed, max_concurrent=concurrent), grid
    if search.searcher == "random":
        return Listed(complete, random_state=search.seed, max_concurrent=concurrent), dict(space)
    return Limiter(_tpe(search, space, complete), max_concurrent=concurrent), {}


def _tpe(search: SearchConfig, space: Mapping[str, Any], first: list[dict[str, Any]] | None) -> Searcher:
    import warnings

    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line for each study and trial otherwise
    with warnings.catch_warnings():  # constant_liar is called experimental; it spreads trials that run at once
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        startup = max(3, search.trials // 3)
        sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=startup, constant_liar=True)
    return OptunaSearch(
        space=dict(space), metric=search.metric, mode=search.mode, points_to_evaluate=first, sampler=sampler
    )


def first_point(space: Mapping[str, Any], paper: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's values as a point of the space; empty if one is unknown, or not among listed values."""
    point = {name: value for name, value in paper.items() if name in space and holds(space[name], value)}
    return point if set(point) == set(space) else {}


def near_paper(space: Mapping[str, Any], paper: Mapping[str, Any], presets: Mapping[str, Any]) -> dict[str, Any]:
    """What is tried first: the paper's values and, before them, those of the chosen presets.

    A paper has other values for other data, and a preset holds them (`paper-actnet`); so the first point is
    the configuration that `ctvr run` would train. Values that the space does not hold are left out.
    """
    return {**paper, **{name: value for name, value in presets.items() if name in space and holds(space[name], value)}}


def holds(domain: Any, value: Any) -> bool:
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


def count_trials(search: SearchConfig, param_space: Mapping[str, Any]) -> int:
    """How many trials a search has; a grid has as many as it has points."""
    if search.searcher != "grid":
        return search.trials
    return math.prod(len(values["grid_search"]) for values in param_space.values())


def override_space(space: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A space with `name=v1,v2` choices put in place of its ranges (`--space`); one value fixes a setting.

    Raises:
        ConfigError: if a word has no `=` or no value.
    """
    changed = dict(space)
    for word in words:
        name, equals, values = word.partition("=")
        listed = [_plain(value.strip()) for value in values.split(",") if value.strip()]
        if not equals or not name.strip() or not listed:
            raise ConfigError(f"--space {word!r}: write name=VALUE,VALUE, for example method.beta=0.4,0.6.")
        changed[name.strip()] = tune.choice(listed)
    return changed


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --------------------------------------------------------------------------------------------- schedulers


class TaskHalving(ASHAScheduler):
    """ASHA whose time is the number of finished tasks; it compares trials after the same task only.

    A trial's last report never ends it: there is nothing left to save.

    Args:
        search: metric, mode, grace and reduction.
        num_tasks: of the stream.
    """

    def __init__(self, search: SearchConfig, num_tasks: int) -> None:
        grace = min(search.grace_tasks, num_tasks)
        super().__init__(time_attr="task", max_t=num_tasks + 1, grace_period=grace, reduction_factor=search.reduction)
        self.num_tasks = num_tasks
        self._better = 1.0 if search.mode == "max" else -1.0

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        decision = super().on_trial_result(tune_controller, trial, result)
        return TrialScheduler.CONTINUE if result.get("task", 0) >= self.num_tasks else decision

    def remember(self, scores: Mapping[str, Mapping[int, float]]) -> None:
        """Take in what earlier processes of this sweep measured: trial id -> finished tasks -> metric."""
        for milestone, recorded in self._brackets[0]._rungs:
            for trial_id, by_task in scores.items():
                reached = [task for task in by_task if task >= milestone]
                if reached:
                    recorded[trial_id] = self._better * by_task[min(reached)]


def scheduler(search: SearchConfig, num_tasks: int) -> TrialScheduler:
    """The scheduler that was asked for."""
    return FIFOScheduler() if search.scheduler == "none" else TaskHalving(search, num_tasks)
