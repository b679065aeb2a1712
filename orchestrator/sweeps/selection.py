"""What is run again: the best trials of a search, over which seeds, as one list of runs.

Trials have seed 0, reruns on test videos 1, 2, 3 and so on, confirmations on validation videos those from 1001 on. A
seed that was used in between is left out, so that nothing is judged by a seed that it was chosen by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.learning.run import has_training
from ctvr.orchestrator.on_ray.halving_searcher import NUMBER
from ctvr.orchestrator.on_ray.plan import GAIN, MEAN, RunSpec, TrialPlan, label_of
from ctvr.orchestrator.on_ray.tune import run_specs
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

FIRST_SEED, FIRST_CONFIRMATION = 1, 1001
METRIC_LABELS = {GAIN: "R@1 gain over zero-shot", MEAN: "R@1, the mean over tasks"}


@dataclass(frozen=True)
class Rerun:
    """One run of a rerun, and what its record says beside the settings."""

    experiment: Experiment
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return label_of(self.experiment.settings, self.experiment.name)

    def listed(self) -> RunSpec:
        return RunSpec(self.label, self.experiment.settings, self.experiment.presets, self.tags)


# --------------------------------------------------------------------------------------------- the winners


def selection_metric(sweep: RunRecord) -> tuple[str, str]:
    """What a sweep's winner is the best by: (metric, "max" or "min")."""
    return str(sweep.settings.get("search.metric", GAIN)), str(sweep.settings.get("search.mode", "max"))


def best_trials(tracker: Tracker, sweep_name: str, top: int | None) -> list[RunRecord]:
    """The best complete trials of a sweep (None: all), by the metric it was searched for, after the last task.

    Raises:
        ConfigError: if the sweep is unknown or has no complete trial.
    """
    sweep = tracker.find_sweep(sweep_name)
    if sweep is None:
        raise ConfigError(
            f"sweep: none is called {sweep_name!r} in {tracker.uri.split('@')[-1]}. `ctvr ui` lists them."
        )
    complete = tracker.find_runs(sweep=sweep_name, tags={"ctvr.complete": "true"})
    if not complete:
        raise ConfigError(f"sweep {sweep_name}: no trial is complete. Resume it: ctvr sweep --resume {sweep_name}")
    metric, mode = selection_metric(sweep)

    def best_first(run: RunRecord) -> tuple[float, str]:
        """Of equal trials the one that was suggested first."""
        value = last_value(run, metric)
        rank = math.inf if math.isnan(value) else value if mode == "min" else -value
        settings = digest_of({name: str(setting) for name, setting in run.settings.items()})
        return rank, run.tags.get(NUMBER, "~") + settings

    return sorted(complete, key=best_first)[:top]


# ------------------------------------------------------------------------------------------ seeds and runs


def used_seeds(trials: Sequence[RunRecord]) -> frozenset[int]:
    """The seeds of trials."""
    return frozenset(int(run.settings["seed"]) for run in trials if "seed" in run.settings)


def fresh_seeds(count: int, used: frozenset[int], first: int = FIRST_SEED) -> list[int]:
    """So many seeds from `first` on, none of which was used."""
    return list(itertools.islice((seed for seed in itertools.count(first) if seed not in used), count))


def expand_seeds(found: Sequence[Rerun], seeds: int, workers: int, used: frozenset[int] = frozenset()) -> list[Rerun]:
    """Each over fresh seeds on test videos, once where nothing is trained; what is listed twice runs once.

    `used` are the seeds of the trials that were chosen among: none of them is taken.
    """
    fresh_ones = fresh_seeds(seeds, used)
    runs: dict[str, Rerun] = {}
    for each in found:
        for seed in fresh_ones if has_training(each.experiment) else fresh_ones[:1]:
            fresh = {"evaluation.split": "test", "seed": seed, "workers": workers}
            made = resolve({**each.experiment.settings, **fresh}, None, each.experiment.presets)
            runs[digest_of(made.settings)] = replace(each, experiment=made)  # a winner's tags stay, not a baseline's
    return list(runs.values())


def expand_task_orders(runs: Sequence[Rerun], orders: int) -> list[Rerun]:
    """Each in so many orders of the stream's tasks: its own, and those that the numbers from 1 on draw.

    Raises:
        ConfigError: for less than one order.
    """
    if orders < 1:
        raise ConfigError(f"--task-orders must be >= 1, got {orders}. 1 is the stream's own order of tasks alone.")
    made = list(runs)
    for order in range(1, orders):
        for each in runs:
            drawn = {"stream": f"{each.experiment.run.stream}@{order}"}
            made.append(
                replace(each, experiment=resolve({**each.experiment.settings, **drawn}, None, each.experiment.presets))
            )
    return made


def run_all(plan: TrialPlan, runs: Sequence[Rerun], num_tasks: int, execution: ExecutionConfig) -> int:
    """Run experiments on the connected cluster; returns how many failed."""
    listed = [run.listed() for run in runs]
    outcome = run_specs(plan, num_tasks, listed, execution.max_concurrent)
    if outcome.is_interrupted:  # Ray Tune ends in order on Ctrl-C, and returns
        raise KeyboardInterrupt
    return outcome.failed


def incomplete_runs(runs: Sequence[Rerun], name: str, tracker: Tracker) -> list[Rerun]:
    """The runs of the rerun `name` that have no complete record."""
    complete = tracker.find_runs(sweep=name, tags={"ctvr.complete": "true"})
    done = {run.tags.get("ctvr.trial") for run in complete}
    return [run for run in runs if f"{name}-{run.label}" not in done]
