"""Statistics over seeds: means, and curves over tasks or epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ctvr.orchestrator.tables.table import Table, Value
from ctvr.orchestrator.tables.table_columns import INCREMENTAL

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

OWN = "own gallery"  # title of a row's matrix
FORGOTTEN = {"bwf", "fr", "hm", "forgetting", "forgetting_fixed"}  # rows that learn more than one task
# metrics that figures show over training: StructAlign's geometry, gates of CAMoE and of experts
TRAINING = re.compile(r"train/((?:micd|angle)_(?:text|video)|(?:gate(?:_\w+)?|expert)/\w+)")


def mean(values: Sequence[float]) -> Value:
    """Return mean and sample standard deviation; unknown if one seed's value is unknown."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Value(float(np.mean(values)), std)


def curve(runs: Sequence[RunRecord], key: str) -> list[tuple[int, float, float]]:
    """Return (step, mean, standard deviation) of a metric at every step that all runs have."""
    histories = [dict(run.metrics.get(key, [])) for run in runs]
    steps = sorted(set.intersection(*(set(history) for history in histories)))
    points = [(step, mean([history[step] for history in histories])) for step in steps]
    return [(step, value.mean, value.std) for step, value in points if math.isfinite(value.mean)]


def average_incremental(runs: Sequence[RunRecord]) -> dict[str, Value]:
    """Return `INCREMENTAL`: R@1 averaged over the tasks so far, then over the task after which it was measured.

    Eq. 6 of DAR (arXiv:2605.31229). Unknown if a task lacks a value; {} for a run without tasks.
    """
    keys = sorted(key for key in runs[0].metrics if re.fullmatch(r"task_\d+/t2v/r1", key))
    found = []
    for run in runs:
        tasks = [dict(run.metrics.get(key, [])) for key in keys]
        after = [[task.get(t, math.nan) for task in tasks[:t]] for t in range(1, len(tasks) + 1)]
        found.append(sum(sum(row) / len(row) for row in after) / max(1, len(after)))
    return {INCREMENTAL: mean(found)} if keys else {}


def _summed(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[tuple[int, float, float]]:
    """Return the curve of a sum of metrics, not all of which exist in every task."""
    wholes: list[dict[int, float]] = [{} for _ in runs]
    for whole, run in zip(wholes, runs):
        for step, value in (point for key in keys for point in run.metrics[key]):
            whole[step] = whole.get(step, 0.0) + value
    steps = sorted(set.intersection(*map(set, wholes)))
    points = [(step, mean([whole[step] for whole in wholes])) for step in steps]
    return [(step, value.mean, value.std) for step, value in points]


def training(runs: Sequence[RunRecord]) -> dict[str, tuple[tuple[int, float, float], ...]]:
    """Return the training curves of figures over all epochs of the stream, from 1; empty if a method logs none.

    Runs of version 0.2 and before also logged finished tasks under the same keys, at steps that are not the end of an
    epoch. Losses have no value there, so these steps are skipped. Also empty if task boundaries are hidden, since
    figures need equally many epochs per task.
    """
    if any(cut in runs[0].tags.get("ctvr.stream", "") for cut in ("_chunks", "_drift")):
        return {}
    shared = sorted(set.intersection(*(set(run.metrics) for run in runs)))
    known = [match[1] for key in shared if (match := TRAINING.fullmatch(key))]
    losses = [key for key in shared if "/loss/" in key]
    evaluated = {key.partition("/")[0] for key in losses} - {"train"}
    if not losses or not (known or evaluated):
        return {}
    steps = {step for key in losses for step, _ in runs[0].metrics[key]}  # later tasks may have other loss terms
    epochs = {step: number for number, step in enumerate(sorted(steps), start=1)}
    curves = {key: curve(runs, f"train/{key}") for key in known}
    for split in ("train", *sorted(evaluated)) if evaluated else ():
        curves[f"loss/{split}"] = _summed(runs, [key for key in losses if key.startswith(f"{split}/")])
    return {
        key: tuple((epochs[step], mean, std) for step, mean, std in points if step in epochs)
        for key, points in curves.items()
    }


def changes(table: Table) -> dict[str, list[list[float]]]:
    """Return, per row, R@1 of every task after every task minus zero-shot CLIP's R@1 of that task (fig. 2 of CTVR).

    Both are R@1 in the task's own gallery, in points, as lower-triangular lists. Empty without a zero-shot row.
    """
    untrained = next((row.matrices.get(OWN) for row in table.rows if row.method == "zero_shot"), None)
    if not untrained:
        return {}
    learned = {row.label: row.matrices.get(OWN) for row in table.rows if row.method != "zero_shot"}
    return {
        label: [[value - untrained[i][i] for i, value in enumerate(after)] for after in matrix]
        for label, matrix in learned.items()
        if matrix and len(matrix) == len(untrained)
    }
