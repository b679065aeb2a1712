"""Listing, inspection and removal of recorded runs (`ctvr runs`)."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.console import format_duration, printable
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.store.gc import OF_RUNS
from ctvr.orchestrator.streams.metric_names import ACCURACY, ANSWERED
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

RUNS = "still runs"
MAX_LISTED = 20  # listed runs, unless all are requested
HEAD = ("RUN", "METHOD", "STREAM", "SPLIT", "SEED", "R@1", "AGE", "FILES", "STATE", "NAME")
MEASURES = ("stream/t2v/r1", ACCURACY, ANSWERED)  # R@1, or the accuracy on images or on questions


def list_runs(execution: ExecutionConfig, stream: str | None = None, everything: bool = False) -> str:
    """Return a table of the newest runs; `everything` lists all runs, including the trials of searches.

    Raises:
        ConfigError: if the runs folder has no records, or the stream has no runs.
    """
    tracker = execution.existing_tracker()
    runs = tracker.find_runs(stream=stream)
    if stream and not runs:
        known = sorted({run.tags.get("ctvr.stream", "") for run in tracker.find_runs()})
        meant = suggest(stream, known)
        raise ConfigError(f"no run of stream {stream!r}.{meant} Streams with runs: {', '.join(known)}.", "runs")
    shown = [run for run in reversed(runs) if everything or run.tags.get("ctvr.role", "final") == "final"]
    listed = shown if everything else shown[:MAX_LISTED]
    lines = [HEAD, *map(_cells, listed)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    text = ["  ".join(cell.ljust(wide) for cell, wide in zip(line, widths)).rstrip() for line in lines]
    if left := len(runs) - len(listed):
        text.append(f"{left} more, including trials of searches: ctvr runs --all")
    return "\n".join([*text, "next: ctvr runs show RUN"] if listed else ["no run is recorded"])


def _cells(run: RunRecord) -> tuple[str, ...]:
    tags = run.tags
    state = "complete" if is_complete(run) else run.status.lower()
    age = format_duration(max(time.time() - run.started / 1000, 0))
    cells = (
        run.run_id[:8],
        tags.get("ctvr.method", str(run.settings.get("method", "?"))),
        tags.get("ctvr.stream", "?"),
        tags.get("ctvr.split", "?"),
        str(run.settings.get("seed", "?")),
        _format_measure(run),
        age if age[-1] != "h" or float(age[:-2]) < 48 else f"{float(age[:-2]) / 24:.0f} days",
        _size(run.folder),
        state,
        run.name,
    )
    return tuple(map(printable, cells))


def is_complete(run: RunRecord) -> bool:
    """Return whether all tasks of a run are finished and recorded."""
    return run.tags.get("ctvr.complete") == "true"


def _format_measure(run: RunRecord) -> str:
    last = next((found for key in MEASURES if (found := run.last(key))), None)
    return "-" if last is None else f"{last[1]:.2f}"


def _size(folder: Path | None) -> str:
    if folder is None:
        return "remote"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 1e6:.1f} MB"


def find_record(name: str, tracker: Tracker, methods: bool = False) -> RunRecord:
    """Return the run with this ID (or at least 6 leading characters), otherwise the newest run with this name.

    With `methods`, the name of a method refers to its newest complete run.

    Raises:
        ConfigError: if no run is found, or if several IDs begin with `name`.
    """
    runs = tracker.find_runs()
    by_id = [run for run in runs if len(name) >= 6 and run.run_id.startswith(name.lower())]
    if len(by_id) > 1:
        raise ConfigError(f"run {name!r}: {len(by_id)} runs have ids that begin with it. Use more characters.")
    of_method = [run for run in runs if methods and run.tags.get("ctvr.method") == name and is_complete(run)]
    if found := by_id or [run for run in runs if run.name == name] or of_method:
        return found[-1]
    raise ConfigError(f"does not exist.{what_it_names(name, runs)}", f"run {name!r}")


def what_it_names(name: str, runs: Sequence[RunRecord]) -> str:
    """Return a hint on a name that is not a run: a stream or sweep with this name, or similar names, and a command."""
    cell = f"To explain a value in its table: ctvr runs explain {name} ROW R@1"
    if name in {run.tags.get("ctvr.stream") for run in runs}:
        return f" It is a stream; its runs: ctvr runs --stream {name}. {cell}"
    if name in {run.tags.get("ctvr.sweep") for run in runs}:
        return f" It is a sweep; its report: ctvr report {name}. {cell}"
    known = [each for run in runs for each in (run.name, run.run_id[:8])]
    return f"{suggest(name, known)} `ctvr runs --all` lists the runs."


def show_run(name: str, execution: ExecutionConfig) -> str:
    """Describe one run: state, results, location of its files, and the commands that repeat and explain it."""
    run = find_record(name, execution.existing_tracker(), methods=True)
    tags, folder = run.tags, run.folder
    cells = dict(zip(HEAD, _cells(run)))
    more = runs_option(execution.runs)
    lines = [
        f"run {run.name} ({run.run_id}), {cells['STATE']}",
        f"  method    {cells['METHOD']} on {cells['STREAM']}, {cells['SPLIT']} videos, seed {cells['SEED']}",
        f"  R@1       {cells['R@1']}",
        f"  began     {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(run.started / 1000))}, {cells['AGE']} ago",
        f"  presets   {tags.get('ctvr.presets') or 'none'}",
        f"  sweep     {tags.get('ctvr.sweep') or 'none'}",
        f"  commit    {tags.get('ctvr.commit', 'unknown')}",
        f"  files     {folder or run.artifacts}, {cells['FILES']}",
    ]
    if command := repeat_command(run, execution):
        lines.append(f"  repeat    {command}")
    lines.append(f"  origin    ctvr runs explain {run.run_id[:8]}{more}")
    return "\n".join(map(printable, lines))


def repeat_command(run: RunRecord, execution: ExecutionConfig) -> str:
    """Return the command that trains a run again from its config.json; empty if the file is not on this machine."""
    folder = run.folder
    if folder is None or not (config := folder / "config.json").is_file():
        return ""
    place = config.relative_to(Path.cwd()) if config.is_relative_to(Path.cwd()) else config
    more = runs_option(execution.runs)
    return f"ctvr run --config {shlex.quote(str(place))} --fresh{more}"


def remove_runs(
    names: Sequence[str], execution: ExecutionConfig, commits: bool = False, force: bool = False, confirmed: bool = True
) -> str:
    """Delete records of runs in MLflow; return a text on the removed runs.

    Tasks are deleted first, so that the same command continues after it was killed. MLflow marks a run as deleted, and
    `mlflow runs restore` undoes it. Weights that another run adopted are kept.

    Args:
        names: names or ids of runs.
        execution: runs folder and store.
        commits: whether to also delete the finished tasks.
        force: whether to delete a run that is the best of a stream or part of a sweep.
        confirmed: whether to delete; if false, the text lists what would be deleted.

    Raises:
        ConfigError: for a running run and, unless `force`, for the best run of a stream or a run of a sweep.
    """
    reader = execution.existing_tracker()  # a wrong name is refused before MLflow is imported
    found = [find_record(name, reader) for name in names]
    for run in found:
        if (reason := _reason_to_keep(run)) and (reason == RUNS or not force):
            again = f"ctvr runs rm {run.run_id[:8]} --force{' --yes' * confirmed}"
            remedy = "Stop it first." if reason == RUNS else f"Run: {again}"
            raise ConfigError(f"{reason}. {remedy}", f"run {run.name}")
    tracker = execution.existing_tracker(writes=True) if confirmed else reader
    keys = {run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "") for run in found} - {""}
    gone = {run.run_id for run in found}
    others = [run for run in tracker.find_runs(strict=commits) if run.run_id not in gone]
    shared = keys & {run.tags.get(tag, "") for run in others for tag in ("ctvr.commits", "ctvr.result")}
    if not confirmed:
        own = f"the finished tasks of {_runs(len(keys - shared))}" if commits else "no finished task"
        lines = [f"would remove {run.name} ({run.run_id[:8]})" for run in found]
        return "\n".join(
            [*lines, f"the record{'s' * (len(found) > 1)} of {_runs(len(found))}, and {own}. Add --yes to remove them."]
        )
    if commits:
        store = execution.existing_store()
        for kind, key in product(OF_RUNS, keys - shared):
            for name in store.list(kind, f"{key}/"):
                store.delete(kind, name)
    for run in found:
        tracker.delete_run(run.run_id)
    lines = [f"removed {run.name} ({run.run_id[:8]})" for run in found]
    if not commits:
        lines.append(
            "The finished tasks are kept in the store, and a repeated run reuses them. --commits removes them."
        )
        return "\n".join(lines)
    lines.append(
        f"removed the finished tasks of {_runs(len(keys - shared))}; `ctvr cache gc --yes` frees their weights"
    )
    if shared:
        lines.append(f"kept the finished tasks of {_runs(len(shared))}: other runs use them, too")
    return "\n".join(lines)


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _reason_to_keep(run: RunRecord) -> str:
    """Return the reason to keep a run as a predicate, or "" if it can be removed."""
    if run.status == "RUNNING":
        return RUNS
    if run.tags.get("ctvr.best"):
        return f"is best-{run.tags.get('ctvr.stream', 'STREAM')}, the model that searches chose"
    if sweep := run.tags.get("ctvr.sweep"):
        return f"belongs to sweep {sweep}, whose table needs it"
    return ""
