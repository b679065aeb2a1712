"""Reading of a search's confirmation from MLflow, without importing Ray."""

from __future__ import annotations

from ctvr.orchestrator.on_ray.plan import names_of
from ctvr.orchestrator.sweeps.comparison import RECOMMENDED, ConfirmationResult, compare_candidates
from ctvr.orchestrator.sweeps.front import FrontResult, confirm_front
from ctvr.orchestrator.sweeps.selection import best_trials, selection_metric
from ctvr.orchestrator.tables.significance import read_ranks
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

CONFIRMS = "ctvr.confirms"  # tag of a confirmation's runs: name of the sweep


def read_verdict(tracker: Tracker, sweep_name: str) -> ConfirmationResult | FrontResult | None:
    """Return the result of a sweep's confirmation from MLflow; None if it did not run, or if it failed."""
    sweep = tracker.find_sweep(sweep_name)
    if sweep is None or "ctvr.confirmation" not in sweep.tags:
        return None
    tags = {"ctvr.complete": "true", CONFIRMS: sweep_name}
    groups: dict[str, list[RunRecord]] = {}
    for run in tracker.find_runs(sweep=sweep.tags["ctvr.confirmation"], tags=tags):
        groups.setdefault(run.tags["ctvr.candidate"], []).append(run)
    if RECOMMENDED not in groups or len(groups) < 2:
        return None
    runs = [run for group in groups.values() for run in group]
    ranks = {run.run_id: found for run in runs if (found := read_ranks(tracker, run.run_id))}
    order = [run.name for run in best_trials(tracker, sweep_name, None)]
    rule = selection_metric(sweep)
    if len(names_of(rule[0])) > 1:
        return confirm_front(sweep_name, groups, ranks, rule, order)
    return compare_candidates(sweep_name, groups, ranks, rule, order)
