"""Selection of the best trials of a search, and the list of runs that repeat them over new seeds.

Trials have seed 0, reruns on test videos have seeds from 1, and confirmations on validation videos seeds from 1001.
Used seeds are skipped, so that a candidate is not evaluated with a seed that helped to select it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.pareto import best_first, losses_of
from ctvr.orchestrator.on_ray.plan import GAIN, MEAN, NUMBER, RunSpec, TrialPlan, label_of, names_of
from ctvr.orchestrator.streams.metric_names import COSTS
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

if TYPE_CHECKING:
    from ctvr.orchestrator.settings.experiment import Experiment

PLANNED = "ctvr.planned"  # tag of a rerun's parent run: the number of its runs
SPACE = "ctvr.space"  # tag of a sweep's parent run: the searched space as JSON
FIRST_SEED, FIRST_CONFIRMATION = 1, 1001
METRIC_LABELS = {
    GAIN: "R@1 gain over zero-shot",
    MEAN: "R@1, the mean over tasks",
    "stream/t2v/r1": "R@1",
    "stream/t2v/bwf": "forgetting",
    f"{COSTS}video_gmacs": "GMACs of a video",
    f"{COSTS}query_gmacs": "GMACs of a query",
    f"{COSTS}trained_parameters": "trained parameters",
    f"{COSTS}stored_floats": "stored numbers of a video",
}


@dataclass(frozen=True)
class Rerun:
    """One run of a rerun, and the tags of its record."""

    experiment: Experiment
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return label_of(self.experiment.settings, self.experiment.name)

    def listed(self) -> RunSpec:
        return RunSpec(self.label, self.experiment.settings, self.experiment.presets, self.tags)


# --------------------------------------------------------------------------------------------- the winners


def selection_metric(sweep: RunRecord) -> tuple[str, str]:
    """Return the metric and mode ("max" or "min") by which a sweep's winner is selected."""
    return str(sweep.settings.get("search.metric", GAIN)), str(sweep.settings.get("search.mode", "max"))


def describe_metric(metric: str) -> str:
    """Return the label of a search's metric, or the comma-separated labels of several objectives."""
    return ", ".join(METRIC_LABELS.get(name, name) for name in names_of(metric))


def result_text(run: RunRecord, metric: str) -> str:
    """Return the value of a search's metric, or the values of its objectives, for a trial as text."""
    values = [last_value(run, name) for name in names_of(metric)]
    return f"{values[0]:+.2f}" if len(values) == 1 else ", ".join(f"{value:.4g}" for value in values)


def best_trials(tracker: Tracker, sweep_name: str, top: int | None) -> list[RunRecord]:
    """Return the complete trials of a sweep, the best first, by the search's metric after the last task.

    With several objectives, trials of the Pareto front are first (on_ray/pareto.py).

    Args:
        tracker: records of runs.
        sweep_name: name of the sweep.
        top: number of returned trials; if None, all complete trials are returned.

    Raises:
        ConfigError: if the sweep is unknown or has no complete trial.
    """
    sweep = tracker.require_sweep(sweep_name)
    complete = tracker.find_runs(sweep=sweep_name, tags={"ctvr.complete": "true"})
    if not complete:
        raise ConfigError(f"sweep {sweep_name}: no trial is complete. Resume it: ctvr sweep --resume {sweep_name}")
    metric, mode = selection_metric(sweep)

    def suggested(run: RunRecord) -> str:
        settings = digest_of({name: str(setting) for name, setting in run.settings.items()})
        return run.tags.get(NUMBER, "~") + settings

    complete = sorted(complete, key=suggested)
    modes = names_of(mode)
    points = [losses_of([last_value(run, name) for name in names_of(metric)], modes) for run in complete]
    return [complete[index] for index in best_first(points)][:top]


def trial_rows(tracker: Tracker, sweep_name: str, reports: bool = False) -> list[dict[str, Any]]:
    """Return state, last task, metrics and settings of each trial of a sweep, in the order of proposal.

    Args:
        tracker: records of runs.
        sweep_name: name of the sweep.
        reports: whether to return a row for each task that a trial reported, also before a resume, which Ray Tune's own
            tables lack.

    Raises:
        ConfigError: if the sweep is unknown.
    """
    metrics = list(dict.fromkeys((*names_of(selection_metric(tracker.require_sweep(sweep_name))[0]), "stream/t2v/r1")))
    rows = []
    numbered = [(run.tags.get(NUMBER, "").lstrip("0"), run) for run in tracker.find_runs(sweep=sweep_name)]
    for _, run in sorted(numbered, key=lambda pair: (len(pair[0]), pair[0])):  # by value
        is_complete, stopped = run.tags.get("ctvr.complete") == "true", run.tags.get("ctvr.stopped", "")
        state = "complete" if is_complete else "stopped" if stopped else run.status.lower()
        about = {"run_id": run.run_id, "name": run.name, "state": state, "stopped": stopped}
        values = {key: dict(run.metrics.get(key, [])) for key in metrics}
        tasks = sorted(set().union(*values.values())) or [0]
        for task in tasks if reports else tasks[-1:]:
            found = {key: known.get(task, math.nan) for key, known in values.items()}
            rows.append({**about, "task": task, **found, **run.settings})
    return rows


def have_no_winner(trials: Sequence[RunRecord], metric: str) -> bool:
    """Return whether several complete trials have the same result, so that none of them is the best.

    Args:
        trials: trials of a search.
        metric: metric of the search, or several, comma-separated.
    """
    complete = [run for run in trials if run.tags.get("ctvr.complete") == "true"]
    results = {repr([last_value(run, name) for name in names_of(metric)]) for run in complete}
    return len(complete) > 1 and len(results) == 1


# ------------------------------------------------------------------------------------------ seeds and runs


def used_seeds(trials: Sequence[RunRecord]) -> frozenset[int]:
    """Return the set of seeds of trials."""
    return frozenset(int(run.settings["seed"]) for run in trials if "seed" in run.settings)


def fresh_seeds(count: int, used: frozenset[int], first: int = FIRST_SEED) -> list[int]:
    """Return the `count` smallest unused seeds that are at least `first`."""
    return list(itertools.islice((seed for seed in itertools.count(first) if seed not in used), count))


def expand_seeds(found: Sequence[Rerun], seeds: int, workers: int, used: frozenset[int] = frozenset()) -> list[Rerun]:
    """Return each run over new seeds on test videos, or once if it does not train, without duplicates.

    Args:
        found: the runs.
        seeds: number of seeds.
        workers: number of workers of a run.
        used: seeds of the trials that were compared, which are skipped.
    """
    from ctvr.orchestrator.learning.run.execute import has_training
    from ctvr.orchestrator.settings.resolve import with_values  # imports torch, which a page does not need

    fresh_ones = fresh_seeds(seeds, used)
    runs: dict[str, Rerun] = {}
    for each in found:
        for seed in fresh_ones if has_training(each.experiment) else fresh_ones[:1]:
            fresh = {"evaluation.split": "test", "seed": seed, "workers": workers, "evaluation.every_epoch": False}
            made = with_values(each.experiment, fresh)
            runs[digest_of(made.settings)] = replace(each, experiment=made)  # a winner's tags replace a baseline's
    return list(runs.values())


def expand_task_orders(runs: Sequence[Rerun], orders: int) -> list[Rerun]:
    """Return each run in `orders` task orders, the stream's own and random orders, which are numbered from 1.

    Raises:
        ConfigError: if `orders` is less than 1.
    """
    from ctvr.orchestrator.settings.resolve import with_values

    if orders < 1:
        raise ConfigError(f"--task-orders: must be >= 1, got {orders}. Use 1 for the stream's own order only.")
    made = list(runs)
    for order in range(1, orders):
        for each in runs:
            drawn = with_values(each.experiment, {"stream": f"{each.experiment.run.stream}@{order}"})
            made.append(replace(each, experiment=drawn))
    return made


def run_all(plan: TrialPlan, runs: Sequence[Rerun], num_tasks: int, execution: ExecutionConfig) -> int:
    """Run experiments on the connected cluster; return the number of failed runs."""
    from ctvr.orchestrator.on_ray.tune import run_specs  # imports Ray

    listed = [run.listed() for run in runs]
    outcome = run_specs(plan, num_tasks, listed, execution.max_concurrent)
    if outcome.is_interrupted:  # a signal that Ray Tune handled, before the first look at the trials
        raise KeyboardInterrupt
    return outcome.failed


def incomplete_runs(runs: Sequence[Rerun], name: str, tracker: Tracker) -> list[Rerun]:
    """Return the runs of the rerun `name` without a complete record."""
    complete = tracker.find_runs(sweep=name, tags={"ctvr.complete": "true"})
    done = {run.tags.get("ctvr.trial") for run in complete}
    return [run for run in runs if f"{name}-{run.label}" not in done]
