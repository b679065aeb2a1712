"""Confirmation of a search's best trials against the recommended settings.

The best of many trials is subject to selection bias, because it ran with one seed on the videos that selected it. So
the best trials and the recommended settings run again on *validation* videos, over seeds that neither the trials nor
the rerun on test videos use. The recommended settings are kept unless a trial is significantly better.

The result is stored in MLflow (tags `ctvr.confirmation` of the sweep, `ctvr.confirms` and `ctvr.candidate` of the
runs), where `ctvr rerun` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.run.execute import has_training
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import with_values
from ctvr.orchestrator.sweeps import mlflow_notes
from ctvr.orchestrator.sweeps.comparison import RECOMMENDED, ConfirmationResult, experiment_of
from ctvr.orchestrator.sweeps.front import FrontResult, front_of
from ctvr.orchestrator.sweeps.selection import (
    FIRST_CONFIRMATION,
    Rerun,
    best_trials,
    fresh_seeds,
    have_no_winner,
    incomplete_runs,
    run_all,
    used_seeds,
)
from ctvr.orchestrator.sweeps.session import flush_outbox, interruptible, ray_cluster, trial_plan
from ctvr.orchestrator.sweeps.verdict import CONFIRMS, read_verdict
from ctvr.orchestrator.tracking.tracker import Tracker


@dataclass(frozen=True)
class Candidate:
    """Candidate of a confirmation: the recommended settings, or a trial."""

    sweep: str
    name: str  # RECOMMENDED, or the trial's name
    experiment: Experiment

    def runs(self, seeds: Sequence[int], workers: int) -> list[Rerun]:
        tags = {CONFIRMS: self.sweep, "ctvr.candidate": self.name}
        shared = {"workers": workers, "evaluation.every_epoch": False}  # which only serves to stop trials
        chosen = seeds if has_training(self.experiment) else seeds[:1]
        return [Rerun(with_values(self.experiment, {**shared, "seed": seed}), tags) for seed in chosen]


# ----------------------------------------------------------------------------------------------- candidates


def candidates(tracker: Tracker, sweep_name: str, recommended: Experiment, search: SearchConfig) -> list[Candidate]:
    """Return the recommended settings and the best trials with other settings.

    With several objectives, the best trials are the Pareto front. The list is empty if all trials are equal, or if the
    best trials have the recommended settings.
    """
    found = [Candidate(sweep_name, RECOMMENDED, recommended)]
    known = {digest_of(recommended.settings)}
    trials = best_trials(tracker, sweep_name, None)
    if have_no_winner(trials, search.metric):
        return []
    if len(search.metrics) > 1:
        trials = front_of(trials, (search.metric, search.mode))
    for run in trials:
        experiment = experiment_of(run)
        if len(found) <= search.confirm and (digest := digest_of(experiment.settings)) not in known:
            known.add(digest)
            found.append(Candidate(sweep_name, run.name, experiment))
    return found if len(found) > 1 else []


def confirm(
    name: str,
    listed: Sequence[Candidate],
    num_tasks: int,
    execution: ExecutionConfig,
    tracker: Tracker,
    search: SearchConfig,
    again: str,
) -> dict[str, ConfirmationResult | FrontResult]:
    """Run candidates of one search, or of all rows of a table, over new seeds on validation videos.

    Args:
        name: name of the sweep or table.
        listed: the recommended settings and the best trials of every search.
        num_tasks: number of tasks of the stream.
        execution: execution settings.
        tracker: records of runs.
        search: settings of the search.
        again: the command that resumes after an interruption; complete runs are kept.

    Returns:
        The result by sweep. A sweep is missing if the recommended settings or all of its trials failed.

    Raises:
        RunsFailed: if MLflow does not respond.
        Interrupted: after Ctrl-C.
    """
    if not listed:
        return {}
    sweeps = list(dict.fromkeys(candidate.sweep for candidate in listed))
    used = frozenset[int]().union(*(used_seeds(tracker.find_runs(sweep=sweep)) for sweep in sweeps))
    seeds = fresh_seeds(search.confirm_seeds, used, FIRST_CONFIRMATION)
    runs = list({run.label: run for each in listed for run in each.runs(seeds, execution.workers)}.values())
    parent_name = f"{name}-confirm-{digest_of([[run.tags, run.experiment.settings] for run in runs])[:6]}"
    stream = listed[0].experiment.run.stream
    settings: Settings = {"confirms": name, "seeds": ",".join(map(str, seeds)), "candidates": len(listed)}
    stream_name = str(next(iter(tracker.find_runs(sweep=sweeps[0]))).tags.get("ctvr.stream", stream))
    parent = tracker.open_sweep(parent_name, stream_name, settings, {"ctvr.role": "confirmation"})
    with interruptible(f"confirmation {parent_name}", again, execution, tracker, [parent]):
        left = incomplete_runs(runs, parent_name, tracker)
        say(f"confirmation {parent_name}: {len(runs)} runs, {len(runs) - len(left)} of them already complete")
        failed = 0
        if left:
            with ray_cluster(execution) as execution:
                plan = trial_plan(execution, parent_name, [run.experiment for run in left])
                plan = replace(plan, parent=parent, tags={"ctvr.role": "confirmation"})
                failed = run_all(plan, left, num_tasks, execution)
    tracker.close(parent, "FAILED" if failed else "FINISHED")
    if waiting := flush_outbox(tracker):
        raise RunsFailed(
            f"{count(waiting, 'record waits', 'records wait')} because MLflow does not respond"
            f", so nothing is confirmed. Restart MLflow, then: ctvr runs sync; {again}"
        )
    for sweep in sweeps:
        if found := tracker.find_sweep(sweep):
            tracker.set_tags(found.run_id, {"ctvr.confirmation": parent_name})
    read = {sweep: read_verdict(tracker, sweep) for sweep in sweeps}
    verdicts = {sweep: verdict for sweep, verdict in read.items() if verdict is not None}
    texts, kept = zip(*((verdict.text, verdict.kept) for verdict in verdicts.values())) if verdicts else ((), ())
    mlflow_notes.annotate_confirmation_runs(tracker, parent, parent_name, sweeps, texts, kept)
    return verdicts
