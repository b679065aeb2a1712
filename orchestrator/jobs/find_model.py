"""Lookup of a run by the name of its model, without torch, so that a wrong name is refused immediately."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.data.hub_repository import fetch_repository, is_repository
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps.comparison import last_value
from ctvr.orchestrator.sweeps.selection import best_trials, selection_metric
from ctvr.orchestrator.tables.selection import split_of
from ctvr.orchestrator.tracking.run_record import RunRecord

log = logging.getLogger(__name__)
BEST = "best-"


def is_folder(name: str) -> bool:
    """Return whether a name is a folder with a saved model."""
    return os.path.lexists(Path(name).expanduser() / "model.json")  # loading refuses a FIFO or a loop of links


def local_name(name: str) -> str:
    """Return the name of a model; for OWNER/NAME@REVISION of the Hub, the folder into which it is downloaded."""
    return str(fetch_repository(name, "model")) if is_repository(name) else name


def find_run(name: str, execution: ExecutionConfig) -> RunRecord:
    """Find the complete run that a name refers to (see `load_model.load`).

    Raises:
        ConfigError: if no run has this name; the message lists known names.
    """
    tracker = execution.existing_tracker()
    complete = tracker.find_runs(tags={"ctvr.complete": "true"})
    if re.fullmatch("[0-9a-f]{6,32}", name) and (found := [run for run in complete if run.run_id.startswith(name)]):
        return found[0]
    if found := [run for run in complete if run.name == name]:
        return found[-1]
    if name.startswith(BEST):
        return _best(name, complete)
    if found := [run for run in complete if run.tags.get("ctvr.method") == name]:
        return found[-1]
    if name in EVERY_METHOD or name in CONFIGURATIONS:
        raise ConfigError(f"no run of {name} is complete", "model", remedy=f"Train one: ctvr run {name} shapes-5")
    if (sweep := tracker.find_sweep(name)) is not None:
        best = best_trials(tracker, name, 1)[0]
        if "," in selection_metric(sweep)[0]:
            log.warning(
                "%s: a search with several objectives has no best trial; using %s of its Pareto front", name, best.name
            )
        return best
    for run in reversed(tracker.find_runs()):
        if run.name == name or (len(name) >= 6 and run.run_id.startswith(name)):
            again = f"ctvr runs show {name} prints the command"
            raise ConfigError(f"model: run {name} is not complete (status: {run.status.lower()}). Resume it; {again}.")
    known = [*dict.fromkeys(run.tags.get("ctvr.method", "") for run in complete), *(run.name for run in complete)]
    known += [BEST + stream for stream in dict.fromkeys(run.tags.get("ctvr.stream", "") for run in complete)]
    raise ConfigError(
        f"model: {name!r} is not a folder with a model.json, run id, run, sweep or method of "
        f"{execution.runs}.{suggest(name, known)} Known: {', '.join(sorted(known)[:8]) or 'none yet'}."
    )


def find_started(name: str, execution: ExecutionConfig) -> RunRecord:
    """Find the complete run that a name refers to (see `load_model.load`), or an incomplete run with this id or name.

    Raises:
        ConfigError: if no run has this name; the message lists known names.
    """
    try:
        return find_run(name, execution)
    except ConfigError:
        found = [run for run in execution.existing_tracker().find_runs() if run.tags.get("ctvr.commits")]
        named = [run for run in found if run.name == name or (len(name) >= 6 and run.run_id.startswith(name))]
        if not named:
            raise
        return named[-1]


def _best(name: str, complete: list[RunRecord]) -> RunRecord:
    stream = name.removeprefix(BEST)
    own = [run for run in complete if run.tags.get("ctvr.stream") == stream]
    if not own:
        streams = sorted({run.tags.get("ctvr.stream", "") for run in complete})
        raise ConfigError(
            f"model {name}: stream {stream!r} has no complete run.{suggest(name, [BEST + each for each in streams])} "
            f"Streams with runs: {', '.join(streams) or 'none yet'}."
        )
    from ctvr.orchestrator.sweeps.best import best_of, can_be_asked  # imports torch

    if chosen := best_of(stream, complete):
        return chosen
    kept = [run for run in own if can_be_asked(run)]
    if not kept:
        raise ConfigError(f"model {name}: none of the {len(own)} runs of {stream} can be queried. Use another run.")
    on_test = [run for run in kept if split_of(run) == "test"]
    highest = max(on_test or kept, key=lambda run: last_value(run, "stream/t2v/r1"))
    log.warning(
        "%s: no search has chosen a model of %s on validation videos; using the run with the highest R@1, %s",
        name,
        stream,
        highest.name,
    )
    return highest
