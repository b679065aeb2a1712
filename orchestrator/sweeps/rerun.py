"""Reruns of search winners and baselines over new seeds on test videos, from which tables are made.

A rerun is an MLflow parent run `NAME-final-...`, whose name ends in a digest of everything that determines its
results: equal winners, seeds, code and data are one rerun. An interrupted rerun is resumed, and its complete runs are
not repeated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctvr.methods.base import Override
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError, RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.plan import TIMING, names_of, read_plan
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.presets import get_method, presets_of
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps import mlflow_notes
from ctvr.orchestrator.sweeps.comparison import RECOMMENDED, ConfirmationResult, experiment_of
from ctvr.orchestrator.sweeps.front import FrontResult, front_of, unconfirmed_tags
from ctvr.orchestrator.sweeps.preparation import decoded_in, prepare_all
from ctvr.orchestrator.sweeps.search_spaces import default_presets
from ctvr.orchestrator.sweeps.selection import (
    PLANNED,
    Rerun,
    best_trials,
    describe_metric,
    expand_seeds,
    expand_task_orders,
    have_no_winner,
    incomplete_runs,
    run_all,
    selection_metric,
    used_seeds,
)
from ctvr.orchestrator.sweeps.session import check_machine, flush_outbox, interruptible, ray_cluster, trial_plan
from ctvr.orchestrator.sweeps.table import table
from ctvr.orchestrator.sweeps.untrained import without_epochs
from ctvr.orchestrator.sweeps.verdict import CONFIRMS, read_verdict
from ctvr.orchestrator.tables.build import seconds_of
from ctvr.orchestrator.tables.paper_comparison import ROW
from ctvr.orchestrator.tables.presets import split_row
from ctvr.orchestrator.tables.shown_columns import Direction
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

EQUAL_COMPUTE = "our control: the steps, pairs and in-batch negatives of {strategy}, without replay"
OVERRIDES = "ctvr.overrides"  # tag of a sweep's parent run: the user's settings as JSON


def shared_overrides(overrides: Mapping[str, Any]) -> Settings:
    """Return the user's settings of a sweep that also apply to its baselines: data, training and so on."""
    return {
        name: value
        for name, value in overrides.items()
        if name.split(".")[0]
        in {"backbone", "data", "optim", "evaluation", "precision", "deterministic", "compile", "threads"}
    }


def baseline(word: str, stream: Stream, stream_name: str, shared: Settings, workers: int) -> Rerun:
    """Return a run of a baseline with the user's settings of a sweep.

    Args:
        word: `method` or `method:preset,preset`; with `@STRATEGY`, the method is trained with the compute of a strategy
            that replays pairs.
        stream: stream of the sweep.
        stream_name: name of the stream as the user typed it.
        shared: the user's settings that apply to baselines.
        workers: number of workers of a run.

    Raises:
        ConfigError: if the method, a preset or the strategy does not exist, or the strategy lacks a `ratio`.
    """
    word, _, strategy = word.partition("@")
    method, presets = split_row(word)
    get_method(method)
    chosen = default_presets(method, stream, presets)
    given: Settings = {**without_epochs(shared, presets), "method": method, "stream": stream_name, "workers": workers}
    if not strategy:
        made = resolve(given, stream.settings, chosen)
        return Rerun(made, {**unsearched_tags(made.name), **_row_tag(made)})
    replaying = baseline(strategy, stream, stream_name, shared, workers).experiment
    factor = 1 + getattr(replaying.method, "ratio", math.nan)
    epochs, batch = (factor * size for size in (replaying.optim.epochs, replaying.data.batch_size))
    if not (epochs.is_integer() and batch.is_integer()):
        raise ConfigError(
            f"--baselines {word}@{strategy}: the compute of {strategy} is not a whole multiple of the compute of its "
            "base. Use a strategy with a whole method.ratio, such as er_ring."
        )
    made = resolve({**given, "optim.epochs": int(epochs), "data.batch_size": int(batch)}, stream.settings, chosen)
    tags = {ROW: f"{word} at {strategy}'s compute", "ctvr.note": EQUAL_COMPUTE.format(strategy=strategy)}
    return Rerun(made, {**unsearched_tags(made.name), **tags})


def baseline_rows(words: Sequence[str]) -> list[str]:
    """Join the words of a comma-separated list of baselines into rows; a preset belongs to the row before it.

    `lwf:original,framefusion_moe:no-ffa,no-tame` are two rows. If a method has the name of a preset, list it first.

    Raises:
        ConfigError: if a method does not exist.
    """
    rows: list[str] = []
    for word in words:
        method = split_row(rows[-1])[0] if rows and ":" in rows[-1] else ""
        if method and word in presets_of(method):
            rows[-1] += f",{word}"
        else:
            rows.append(word)
    return rows


def searched_tags(method: str, trials: Sequence[RunRecord], metric: str) -> dict[str, str]:
    """Return the MLflow tags of a winner's reruns: number of trials, total time of the trials, selection rule."""
    split = next((run.tags["ctvr.split"] for run in trials if "ctvr.split" in run.tags), "val")
    equal = {"ctvr.no_winner": "true"} if have_no_winner(trials, metric) else {}
    scheduler = next((run.tags[TIMING] for run in trials if TIMING in run.tags), "")
    timing = f"; scheduler {scheduler}, which depends on timing" if scheduler else ""
    return {
        **equal,
        "ctvr.searched": f"{method}:{len(trials)}",
        "ctvr.search_seconds": f"{sum(seconds_of(run) for run in trials):.1f}",
        "ctvr.selection": f"{describe_metric(metric)} on {split} videos{timing}",
    }


def unsearched_tags(method: str) -> dict[str, str]:
    """Return the MLflow tags for reruns of a configuration that was not searched."""
    return {"ctvr.searched": f"{method}:0"}


def _row_tag(experiment: Experiment) -> dict[str, str]:
    """Return the tag with the row name of a baseline whose presets change the method; otherwise an empty mapping."""
    known = presets_of(experiment.name)
    changes = [preset for preset in experiment.presets if isinstance(known.get(preset), Override)]
    return {ROW: f"{experiment.name}:{','.join(changes)}"} if changes else {}


def with_baselines(
    baselines: Sequence[Rerun],
    winners: Sequence[RunRecord],
    trials: Sequence[RunRecord],
    metric: str,
    seeds: int,
    workers: int,
    verdict: ConfirmationResult | FrontResult | None = None,
    confirmation: Sequence[RunRecord] = (),
) -> list[Rerun]:
    """Return all runs of a sweep's rerun, one per seed: baselines, recommended settings, winners.

    Args:
        baselines: runs of the baselines.
        winners: the best trials.
        trials: all trials of the sweep.
        metric: metric of the search, or several, comma-separated.
        seeds: number of seeds.
        workers: number of workers of a run.
        verdict: result of the sweep's confirmation. Without it, the recommended settings are not rerun. With several
            objectives, all trials on the confirmed Pareto front are rerun or, without a confirmation, `winners`.
        confirmation: runs of the confirmation, whose seeds are not used again.
    """
    found = list(baselines)
    chosen = [experiment_of(run) for run in winners]
    if isinstance(verdict, FrontResult):
        for member in verdict.members:
            if member.name == RECOMMENDED:
                found.append(Rerun(member.experiment, unsearched_tags(member.experiment.name) | verdict.tags(member)))
            elif member.is_on_front:
                tags = searched_tags(member.experiment.name, trials, metric) | verdict.tags(member)
                found.append(Rerun(member.experiment, tags))
        return expand_seeds(found, seeds, workers, used_seeds([*trials, *confirmation]))
    if verdict is not None:
        found.append(Rerun(verdict.recommended, {**unsearched_tags(verdict.recommended.name), **verdict.tags(False)}))
        first = next((each for each, run in zip(chosen, winners) if run.name == verdict.trial), verdict.searched)
        chosen = [first, *(each for each in chosen if each.settings != first.settings)][: max(1, len(winners))]
    for place, best in enumerate(chosen):
        tags = searched_tags(best.name, trials, metric)
        if len(names_of(metric)) > 1:
            tags |= unconfirmed_tags(winners[place], metric)
        found.append(Rerun(best, tags | (verdict.tags(True) if verdict is not None and place == 0 else {})))
    return expand_seeds(found, seeds, workers, used_seeds([*trials, *confirmation]))


# ----------------------------------------------------------------------------------------------- the rerun


def rerun(
    sweep_name: str,
    execution: ExecutionConfig,
    top: int = 1,
    seeds: int = 3,
    baselines: Sequence[str] = (),
    direction: Direction = "t2v",
    orders: int = 1,
    keep_model: bool = True,
) -> str:
    """Rerun the best trials of a sweep and the baselines over new seeds on test videos; return the table.

    Args:
        sweep_name: name of the sweep.
        execution: execution settings.
        top: number of best trials.
        seeds: number of seeds.
        baselines: baselines as in `baseline_rows`.
        direction: retrieval direction of the table.
        orders: number of task orders.
        keep_model: whether to upload the trained models to MLflow.

    Raises:
        ConfigError: for an argument out of range, or a sweep or baseline that cannot be rerun.
        RunsFailed: if runs failed; the message has the table of the other runs.
    """
    for option, value in (("--top", top), ("--seeds", seeds)):
        if value < 1:
            raise ConfigError("must be >= 1", option, value)
    tracker = execution.existing_tracker(writes=True)
    check_machine(execution, sweep_name)
    winners = best_trials(tracker, sweep_name, None)
    sweep = tracker.find_sweep(sweep_name)
    assert sweep is not None  # `best_trials` has found it
    rule = selection_metric(sweep)
    winners = (front_of(winners, rule) if len(names_of(rule[0])) > 1 else winners)[:top]
    stream_name = winners[0].settings["stream"]
    stream = execution.load_stream(stream_name, render=False)
    given = _read_overrides(sweep, execution)
    if given is None and baselines:
        raise ConfigError(
            f"--baselines {','.join(baselines)}: the settings of sweep {sweep_name} are not recorded here, so "
            "baselines would not be comparable. Rerun it in its own runs folder, or omit --baselines."
        )
    shared = shared_overrides(given or {})
    compared = [baseline(word, stream, stream_name, shared, execution.workers) for word in baseline_rows(baselines)]
    trials = tracker.find_runs(sweep=sweep_name)
    verdict, confirmation = read_verdict(tracker, sweep_name), tracker.find_runs(tags={CONFIRMS: sweep_name})
    runs = with_baselines(compared, winners, trials, rule[0], seeds, execution.workers, verdict, confirmation)
    runs = expand_task_orders(runs, orders)
    again = f"ctvr rerun --sweep {sweep_name} --top {top} --seeds {seeds}"
    again += f" --task-orders {orders}" if orders > 1 else ""
    again += f" --baselines {','.join(baselines)}" if baselines else ""
    again += f" --direction {direction}" if direction != "t2v" else ""
    settings: Settings = {"rerun_of": sweep_name, "seeds": seeds, "top": top}
    settings |= {"baselines": ",".join(baselines)} if baselines else {}
    settings |= {"orders": orders} if orders > 1 else {}
    return execute_rerun(sweep_name, runs, execution, tracker, settings, again, direction, keep_model)


def execute_rerun(
    sweep_name: str,
    runs: Sequence[Rerun],
    execution: ExecutionConfig,
    tracker: Tracker,
    settings: Settings,
    again: str,
    direction: Direction = "t2v",
    keep_model: bool = True,
) -> str:
    """Execute the incomplete runs of a rerun in parallel, and write its table.

    Args:
        sweep_name: name of the sweep that is rerun.
        runs: runs of one stream.
        execution: execution settings.
        tracker: records of runs.
        settings: settings of the parent run.
        again: the command that resumes after an interruption.
        direction: retrieval direction of the table.
        keep_model: whether to upload the trained models to MLflow.

    Raises:
        RunsFailed: if runs failed; the message has the table of the other runs.
    """
    experiments = [run.experiment for run in runs]
    ready = prepare_all(experiments, execution, ("train", "test"), curve=False)
    if decoded := decoded_in(ready):
        say(f"{count(decoded, 'video')} decoded")
    stream = ready[0].stream
    identity = [run.key(each.stream, each.frames) for run, each in zip(experiments, ready)]
    name = f"{sweep_name}-final-{digest_of(identity)[:6]}"
    parent = tracker.open_sweep(name, stream.name, settings, {PLANNED: str(len(runs))})
    tags = {"ctvr.role": "final", "ctvr.rerun_of": sweep_name}
    failed = 0
    with interruptible(f"rerun {name}", again, execution, tracker, [parent]):
        left = incomplete_runs(runs, name, tracker)
        say(f"rerun {name}: {len(runs)} runs, {len(runs) - len(left)} of them already complete")
        if left:
            with ray_cluster(execution) as execution:
                if not execution.gpus_per_trial:
                    prepare_all(
                        [run.experiment for run in left], execution, ("train", "test"), curve=True, on_cluster=True
                    )
                plan = trial_plan(execution, name, [run.experiment for run in left])
                plan = replace(plan, parent=parent, tags=tags, keep_model=keep_model)
                failed = run_all(plan, left, len(stream.tasks), execution)
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if waiting := flush_outbox(tracker):
        raise RunsFailed(
            f"{count(waiting, 'record waits', 'records wait')} because MLflow does not respond"
            f", so no table is written. Restart MLflow, then: ctvr runs sync; {again}"
        )
    if failed == len(runs):
        raise RunsFailed(f"rerun {name}: {count(failed, 'run')} failed, and none is complete. `ctvr ui` shows why.")
    text = table(execution, sweep=name, direction=direction, names_report=False, figures=True)
    mlflow_notes.annotate_rerun(tracker, parent, name, sweep_name, execution)
    if failed:
        raise RunsFailed(f"{text}\n{count(failed, 'run')} failed, without a place in the table. `ctvr ui` shows why.")
    return text


def _read_overrides(sweep: RunRecord, execution: ExecutionConfig) -> Settings | None:
    """Return the user's settings of a sweep from its parent run or from its plan on this machine; otherwise None."""
    if OVERRIDES in sweep.tags:
        try:
            return dict(json.loads(sweep.tags[OVERRIDES]))
        except (ValueError, TypeError, RecursionError):  # MLflow's records may have been edited
            return None
    if not (execution.folder(sweep.name) / "plan.json").is_file():
        return None
    kept = read_plan(execution.folder(sweep.name), sweep.name)[1]
    overrides = kept.get("request", {}).get("overrides", {})
    return dict(overrides) if isinstance(overrides, dict) else None
