"""Figures of a table as panels, which use its rows only. docs/figures.md describes each figure.

write.py adds the matrices of each row, figures/plots.py draws the panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ctvr.orchestrator.figures.plots import Line, Panel, Scale
from ctvr.orchestrator.figures.styles import LineName, styles_of
from ctvr.orchestrator.tables.curves import OWN, changes, reference_curves
from ctvr.orchestrator.tables.index_age import reencoding_curve, share_curve
from ctvr.orchestrator.tables.sensitivity import line_of, sensitivity
from ctvr.orchestrator.tables.table import Row, Table, Value, competes

Drawing = tuple[str, str, list[Panel]]  # (suffix of the file name, title without the stream, panels)
Cost = tuple[str, Scale, Callable[[Row], float]]  # (label of the axis, scale, function that returns the cost of a row)
MOST_BARS = 8  # maximum rows that are drawn as groups of bars; more bars would be too thin
GEOMETRY = {
    "micd_text": "MICD of captions (eq. 22)",
    "micd_video": "MICD of videos (eq. 22)",
    "angle_text": "|epsilon| of captions (eq. 9)",
    "angle_video": "|epsilon| of videos (eq. 9)",
}


def choose_styles(rows: Sequence[Row]) -> list[tuple[int, LineName]]:
    """Return the color (index into `styles.COLOURS`) and the line style of each row."""
    styles = styles_of([(row.label, row.method) for row in rows])
    found = [styles[row.label, row.method] for row in rows]
    return [(style.hue, style.line) for style in found]


def list_drawings(table: Table) -> list[Drawing]:
    """Return every figure for which the rows have values."""
    found = [(name, title.replace("R@1", table.measured), make(table)) for name, (title, make) in FIGURES.items()]
    found += [
        (f"vary_{name.rpartition('.')[2]}", f"sensitivity to {name}", sensitivity(table, name)) for name in table.varies
    ]
    return [each for each in found if each[2]]


def select_curves(table: Table) -> list[Row]:
    """Return the rows with a curve of R@1 after each task, or [] if no row has several tasks."""
    rows = [row for row in table.rows if row.curve]
    return rows if any(len(row.curve) > 1 for row in rows) else []


def _curves(table: Table) -> list[Panel]:
    """Plot R@1 after each task: fig. 6 of CTVR, fig. 4 of StructAlign."""
    lines = [Line(row.label, row.method, row.curve) for row in select_curves(table)]
    return [Panel("tasks learned", f"{table.measured} (%)", lines, dashed=_dashed(table, lines))] if lines else []


def _dashed(table: Table, lines: Sequence[Line]) -> dict[str, list[tuple[float, float]]]:
    """Return the curves of zero-shot CLIP (if not in `lines`) and of a random order, at the x values of the lines."""
    steps = {x for line in lines for x, _, _ in line.points}
    omitted = {"zero-shot" for line in lines if line.method == "zero_shot"}
    found = {name: points for name, points in reference_curves(table).items() if name not in omitted}
    return {name: [point for point in points if point[0] in steps] for name, points in found.items()}


def _forgetting(table: Table) -> list[Panel]:
    """Plot R@1 of the first two tasks after every task (fig. 3 of BMU-MoCo), and the mean R@1 lost on old tasks."""
    rows = [(row, row.matrices[OWN]) for row in table.rows if len(row.matrices.get(OWN, ())) > 1]
    if not rows:
        return []
    panels = []
    for task in range(min(2, len(rows[0][1]) - 1)):
        lines = [
            line_of(row, [(t, matrix[t - 1][task]) for t in range(task + 1, len(matrix) + 1)]) for row, matrix in rows
        ]
        chance = [(t, 100 / table.galleries[task]) for t in (task + 1, len(rows[0][1]))] if table.galleries else []
        dashed = {"chance": chance} if chance else {}
        panels.append(Panel("tasks learned", f"R@1 of task {task + 1} (%)", lines, dashed=dashed))
    lost = [
        line_of(
            row,
            [(t, _mean([matrix[i][i] - matrix[t - 1][i] for i in range(t - 1)])) for t in range(2, len(matrix) + 1)],
        )
        for row, matrix in rows
    ]
    between = _around(lost, least=1.0)  # otherwise noise of 0.01 points fills the panel if nothing is lost
    return [*panels, Panel("tasks learned", "points of R@1 lost, mean of old tasks", lost, between=between)]


def _around(lines: Sequence[Line], least: float) -> tuple[float, float]:
    """Return limits of the y axis, with a margin, that contain all points, 0, `-least` and `least`."""
    known = [mean for line in lines for _, mean, _ in line.points if math.isfinite(mean)]
    low, high = min(-least, *known, 0.0), max(least, *known, 0.0)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _final(table: Table) -> list[Panel]:
    """Plot R@1 of every task when it was learned and at the end, for CVLM (fig. 1 of BMU-MoCo)."""
    rows = [(row, row.matrices[OWN]) for row in table.rows if len(row.matrices.get(OWN, ())) > 1]
    if not rows or "fr" not in {column.key for column in table.columns}:
        return []
    learned = [line_of(row, [(t, own[t - 1][t - 1]) for t in range(1, len(own) + 1)]) for row, own in rows]
    final = [line_of(row, list(enumerate(own[-1], start=1))) for row, own in rows]
    known = [point[1] for line in (*learned, *final) for point in line.points if math.isfinite(point[1])]
    between = (min(known) - 2, max(known) + 2) if known else None
    return [
        Panel("task", name, lines, between=between)
        for name, lines in (("R@1 when learned (%)", learned), ("R@1 of the final model (%)", final))
    ]


def _plasticity(table: Table) -> list[Panel]:
    """Plot R@1 of every task when it was learned minus zero-shot CLIP's R@1: the diagonal of `changes` of each row."""
    found = changes(table)
    lines = [
        line_of(row, [(t, after[-1]) for t, after in enumerate(found[row.label], start=1)])
        for row in table.rows
        if row.label in found
    ]
    bars = len(lines) <= MOST_BARS
    return [Panel("task", "R@1 when learned, less zero-shot (points)", lines, bars=bars)] if lines else []


def _cost(table: Table) -> list[Panel]:
    """Plot R@1 against each cost in `COSTS` (fig. 5 of StructAlign), with the Pareto front."""
    return [panel for cost in COSTS for panel in _against(table, cost, "r1", "R@1 (%)")]


def mean_cost(tables: Sequence[Table]) -> list[Panel]:
    """Plot R@1 against trained parameters, as means over streams, for rows of all tables (fig. 5 of StructAlign)."""
    rows = []
    for row in tables[0].rows:
        own = [each for table in tables for each in table.rows if (each.label, each.method) == (row.label, row.method)]
        if len(own) == len(tables):
            means = {
                key: Value(_mean([each.values.get(key, Value()).mean for each in own])) for key in ("r1", "params_m")
            }
            rows.append(replace(row, values=means))
    return _against(replace(tables[0], rows=tuple(rows)), COSTS[0], "r1", f"R@1 (%), mean of {len(tables)} streams")


def _pareto(table: Table) -> list[Panel]:
    """Plot R@1 and BWF against multiply-adds, with the Pareto front, for a table with columns GMACs and BWF."""
    if not {"gmacs", "bwf"} <= {column.key for column in table.columns}:
        return []
    return [*_against(table, GMACS, "r1", "R@1 (%)"), *_against(table, GMACS, "bwf", "BWF (points)", sign=-1)]


def _sums(table: Table) -> list[Panel]:
    """Plot R-Sum against the multiply-adds of a video (fig. 1d of TempMe), for a table with the column R-Sum."""
    if "rsum" not in {column.key for column in table.columns}:
        return []
    return _against(table, GMACS, "rsum", "R-Sum (R@1 + R@5 + R@10, %)")


def _reencoding(table: Table) -> list[Panel]:
    """Plot R@1 against the multiply-adds that re-encode a share of the old videos, oldest first."""
    lines = [Line(row.label, row.method, points) for row in table.rows if (points := reencoding_curve(row.extra))]
    return [Panel("multiply-adds spent on re-encoding (10^9)", "R@1 (%)", lines)] if lines else []


def _backfilling(table: Table) -> list[Panel]:
    """Plot R@1 against the share of the old videos that is re-encoded, oldest first (FastFill's curve)."""
    lines = [Line(row.label, row.method, points) for row in table.rows if (points := share_curve(row.extra))]
    return [Panel("old videos re-encoded (%)", "R@1 (%)", lines)] if lines else []


def _against(table: Table, of: Cost, key: str, unit: str, sign: int = 1) -> list[Panel]:
    """Plot column `key` against a cost, with the Pareto front. `sign` is -1 if smaller values are better."""
    name, scale, cost = of
    cells = [(row, row.values.get(key, Value())) for row in table.rows]
    known = [
        (row, cost(row), cell)
        for row, cell in cells
        if math.isfinite(cell.mean) and math.isfinite(cost(row)) and (cost(row) > 0 or scale == "linear")
    ]
    if len({round(x, 6) for _, x, _ in known}) < 2:
        return []
    lines = [line_of(row, [(x, cell.mean, cell.std)]) for row, x, cell in known]
    column = next((each for each in table.columns if each.key == key), table.columns[0])
    shared = table.blocks[0][1]  # only rows with equal access to data form a front
    front = pareto([(x, sign * cell.mean) for row, x, cell in known if competes(row, column) and row in shared])
    return [Panel(name, unit, lines, joined=False, scale=scale, front=[(x, sign * y) for x, y in front])]


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of points (cost, gain), by increasing cost."""
    front: list[tuple[float, float]] = []
    for cost, gain in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or gain > front[-1][1]:
            front.append((cost, gain))
    return front


def _geometry(table: Table) -> list[Panel]:
    """Plot the category geometry of StructAlign over epochs: fig. 8 of the paper, and the angles of eq. 9."""
    panels = []
    for key, name in GEOMETRY.items():
        rows = [row for row in table.rows if row.training.get(key)]
        if not rows:
            continue
        lines = [Line(row.label, row.method, row.training[key]) for row in rows]
        panels.append(Panel("epochs (lines: a task ends)", name, lines, borders=_borders(rows[0])))
    return panels


def _losses(table: Table) -> list[Panel]:
    """Plot the loss of training and evaluated pairs over all epochs, in a panel for each row (fig. 6 of CAMoE)."""
    panels = []
    for row in table.rows:
        keys = sorted((key for key in row.training if key.startswith("loss/")), key=lambda key: key != "loss/train")
        lines = [Line(f"{key.partition('/')[2]} pairs", row.method, row.training[key]) for key in keys]
        if lines:
            found = Panel("epochs (lines: a task ends)", "loss (sum of its terms)", lines, title=row.label)
            panels.append(replace(found, borders=_borders(row)))
    return panels


def _borders(row: Row) -> list[float]:
    """Return the x positions between epochs at which a task ends, if all tasks have the same number of epochs.

    They are [] if the number of tasks does not divide the number of epochs.
    """
    tasks, epochs = len(row.curve), max(points[-1][0] for points in row.training.values() if points)
    return [epochs * t / tasks + 0.5 for t in range(1, tasks)] if tasks and epochs % tasks == 0 else []


def _experts(table: Table) -> list[Panel]:
    """Plot the mean share of each expert in the last epoch of every task, in a panel for each row (fig. 7 of CAMoE)."""
    panels = []
    for row in table.rows:
        lines = []
        for key in sorted(key for key in row.training if key.startswith("gate")):
            kind, _, expert = key.partition("/")
            ends = _last_epochs(row, key)
            name = f"{kind.replace('_', ' of ')}: {expert}"
            lines += [Line(name, row.method, ends)] if ends else []
        if lines:
            panels.append(Panel("task", "share (mean over training pairs)", lines, title=row.label))
    return panels


def expert_shares(row: Row) -> np.ndarray:
    """Return the percentages (E, T) of E experts in the gates' weights, in the last epoch of each of T tasks.

    E is 0 if a method does not log experts. Logged values are sums over captions, so that seeds or workers with more
    captions have more weight.
    """
    keys = sorted(key for key in row.training if key.startswith("expert/"))
    counted = np.zeros((len(keys), len(row.curve)))
    for expert, key in enumerate(keys):
        for task, mean, _ in _last_epochs(row, key):
            counted[expert, task - 1] = mean
    with np.errstate(invalid="ignore"):  # a task that trained no experts
        return 100 * counted / counted.sum(axis=0)


def _last_epochs(row: Row, key: str) -> list[tuple[int, float, float]]:
    """Return (task, mean, standard deviation) of the values logged in the last epoch of every task."""
    points, tasks = row.training[key], len(row.curve)
    each = points[-1][0] // tasks if points and tasks else 0  # epochs per task
    return [(epoch // each, mean, std) for epoch, mean, std in points if each and epoch % each == 0]


def _orders(table: Table) -> list[Panel]:
    """Plot R@1 and forgetting in each task order."""
    titles = {"r1": "R@1 (%)", "bwf": "BWF (points)", "fr": "FR (points)"}
    panels = []
    for key, title in titles.items():
        lines = [Line(row.label, row.method, row.orders[key]) for row in table.rows if row.orders.get(key)]
        if lines:
            ticks = [
                (float(x), "own" if x == 0 else str(int(x))) for x in sorted({p[0] for li in lines for p in li.points})
            ]
            panels.append(Panel("order of tasks", title, lines, joined=False, ticks=ticks))
    return panels


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


GMACS: Cost = ("multiply-adds of a video (10^9)", "linear", lambda row: row.values.get("gmacs", Value()).mean)
STORED = "cost/stored_floats_per_video"
COSTS: tuple[Cost, ...] = (
    ("trained parameters (millions)", "log", lambda row: row.values.get("params_m", Value()).mean),
    GMACS,
    ("stored for a video (kB, float32)", "log", lambda row: row.extra.get(STORED, Value()).mean * 4 / 1000),
)
FIGURES: dict[str, tuple[str, Callable[[Table], list[Panel]]]] = {
    "r1": ("R@1 after each task", _curves),
    "forgetting": ("forgetting", _forgetting),
    "final": ("R@1 when learned, and at the end", _final),
    "plasticity": ("gain of each task over zero-shot", _plasticity),
    "cost": ("R@1 against cost (grey: no row beats these)", _cost),
    "sums": ("R-Sum against multiply-adds (grey: no row beats these)", _sums),
    "pareto": ("R@1 and forgetting against multiply-adds (grey: no row beats these)", _pareto),
    "reencoding": ("R@1 after re-encoding a share of the index", _reencoding),
    "backfilling": ("R@1 over the re-encoded share of old videos", _backfilling),
    "orders": ("robustness to the order of tasks", _orders),
    "experts": ("share of each expert", _experts),
    "losses": ("loss while training", _losses),
    "geometry": ("geometry of categories while training", _geometry),
}
