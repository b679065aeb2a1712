"""Statistics over seeds: means, and curves over tasks or epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ctvr.orchestrator.tables.table import Row, Table, Value
from ctvr.orchestrator.tables.table_columns import INCREMENTAL

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

OWN = "own gallery"  # key in `Row.matrices`: R@1 of each task in its own gallery
FORGOTTEN = {"bwf", "fr", "hm", "forgetting", "forgetting_fixed"}  # columns that require more than one learned task
# metrics that figures plot over epochs: geometry of StructAlign, gates of CAMoE, gates of experts
TRAINING = re.compile(r"train/((?:micd|angle)_(?:text|video)|(?:gate(?:_\w+)?|expert)/\w+)")


def mean(values: Sequence[float]) -> Value:
    """Return the mean and the sample standard deviation over seeds. Both are NaN if the value of one seed is NaN.

    The standard deviation of a single value is NaN.
    """
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Value(float(np.mean(values)), std)


def curve(runs: Sequence[RunRecord], key: str) -> list[tuple[int, float, float]]:
    """Return (step, mean, standard deviation) over runs, at each step at which all runs have a value of the metric."""
    histories = [dict(run.metrics.get(key, [])) for run in runs]
    steps = sorted(set.intersection(*(set(history) for history in histories)))
    points = [(step, mean([history[step] for history in histories])) for step in steps]
    return [(step, value.mean, value.std) for step, value in points if math.isfinite(value.mean)]


def average_incremental(runs: Sequence[RunRecord]) -> dict[str, Value]:
    """Return the metric `INCREMENTAL`: the mean over t of the mean R@1 of tasks 1 to t after task t.

    It is eq. 6 of DAR (arXiv:2605.31229). The value is NaN if a task lacks a value of R@1. Without tasks, return {}.
    """
    keys = sorted(key for key in runs[0].metrics if re.fullmatch(r"task_\d+/t2v/r1", key))
    found = []
    for run in runs:
        tasks = [dict(run.metrics.get(key, [])) for key in keys]
        after = [[task.get(t, math.nan) for task in tasks[:t]] for t in range(1, len(tasks) + 1)]
        found.append(sum(sum(row) / len(row) for row in after) / max(1, len(after)))
    return {INCREMENTAL: mean(found)} if keys else {}


def _summed(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[tuple[int, float, float]]:
    """Return (step, mean, standard deviation) over runs of the sum of metrics `keys`. A step may lack some metrics."""
    wholes: list[dict[int, float]] = [{} for _ in runs]
    for whole, run in zip(wholes, runs):
        for step, value in (point for key in keys for point in run.metrics[key]):
            whole[step] = whole.get(step, 0.0) + value
    steps = sorted(set.intersection(*map(set, wholes)))
    points = [(step, mean([whole[step] for whole in wholes])) for step in steps]
    return [(step, value.mean, value.std) for step, value in points]


def training(runs: Sequence[RunRecord]) -> dict[str, tuple[tuple[int, float, float], ...]]:
    """Return name -> (epoch, mean, standard deviation) of the metrics that figures plot over epochs.

    Epochs count from 1 over all tasks. The result is {} if the method does not log such a metric. It is also {} if task
    boundaries are hidden, because figures need equally many epochs per task. Runs of version 0.2 or older also logged
    these metrics after each task, at a step that is not the end of an epoch. Losses lack a value at such a step, so the
    step is skipped.
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


def untrained_row(table: Table) -> Row | None:
    """Return the row of zero-shot CLIP, or None if there is none. The control row `zero_shot:chance` does not count."""
    rows = [row for row in table.rows if row.method == "zero_shot"]
    return next((row for row in rows if row.settings.get("method.is_chance", "").lower() != "true"), None)


def changes(table: Table) -> dict[str, list[list[float]]]:
    """Return, for each row, R@1 of every task after every task minus zero-shot CLIP's R@1 (fig. 2 of CTVR).

    Both are R@1 of the same task in its own gallery. The differences are lower-triangular lists, in points. Without a
    zero-shot row, return {}.
    """
    row = untrained_row(table)
    untrained = row.matrices.get(OWN) if row else None
    if not untrained:
        return {}
    learned = {row.label: row.matrices.get(OWN) for row in table.rows if row.method != "zero_shot"}
    return {
        label: [[value - untrained[i][i] for i, value in enumerate(after)] for after in matrix]
        for label, matrix in learned.items()
        if matrix and len(matrix) == len(untrained)
    }


def own_curve(row: Row) -> list[tuple[int, float]]:
    """Return (tasks learned, mean R@1 of these tasks in their own galleries), or [] if the row lacks this matrix."""
    return [(learned, sum(after) / len(after)) for learned, after in enumerate(row.matrices.get(OWN, ()), start=1)]


def reference_curves(table: Table, own: bool = False) -> dict[str, list[tuple[int, float]]]:
    """Return the known reference curves (tasks learned, R@1 in percent): `zero-shot` (untrained CLIP) and `chance`.

    `own` selects the mean over tasks in their own galleries, instead of R@1 among all videos so far. The zero-shot
    curve comes from the zero-shot row. Without it, R@1 among all videos follows from the gain of another row.
    """
    untrained = untrained_row(table)
    measured = next((row for row in table.rows if row.gains and not row.orders), None)
    own = own or any(column.key == "fr" for column in table.columns)  # CVLM searches own galleries only
    found: dict[str, list[tuple[int, float]]] = {}
    if untrained is not None and untrained.curve:
        found["zero-shot"] = own_curve(untrained) if own else [point[:2] for point in untrained.curve]
    elif measured is not None and not own:
        gains = {step: gain for step, gain, _ in measured.gains}
        found["zero-shot"] = [(step, value - gains[step]) for step, value, _ in measured.curve if step in gains]
    if table.measured == "R@1" and all(table.galleries):
        shares = [100 / size for size in table.galleries]
        found["chance"] = [
            (t, sum(shares[:t]) / t if own else 100 / sum(table.galleries[:t])) for t in range(1, len(shares) + 1)
        ]
    return {name: points for name, points in found.items() if points}
