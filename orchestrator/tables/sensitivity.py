"""Sensitivity figures: metrics over the values of one setting (CTVR, figure 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ctvr.orchestrator.figures.plots import Line, Panel, Scale
from ctvr.orchestrator.tables.setting_diff import of_data
from ctvr.orchestrator.tables.table import Row, Table, Value
from ctvr.orchestrator.tables.unpublished_settings import at_most


def sensitivity(table: Table, name: str) -> list[Panel]:
    """Plot R@1 and forgetting, for CVLM also FR and HM, over the values of setting `name` (fig. 8 of CTVR).

    Rows that differ only in this setting, or in settings that it bounds or determines, form one line. Rows of methods
    that are not varied are horizontal lines. A vertical line marks the recommended value: that of a row without a
    setting in its label. The result is [] if the rows of each method have only one value.
    """
    lines = _varied(table, name)
    if not lines:
        return []
    values = sorted({row.settings[name] for rows in lines for row in rows}, key=lambda text: (_number(text), text))
    places, scale = _places(values)
    varied = {row.method for rows in lines for row in rows}
    levels = [row for row in table.rows if row.method not in varied]
    recommended = {places[row.settings[name]] for rows in lines for row in rows if "=" not in row.label}
    panels = []
    for column in table.columns:
        if column.key not in {"r1", "bwf", "fr", "hm", "current"}:
            continue
        drawn = []
        for rows in lines:
            cells = [(places[row.settings[name]], row.values.get(column.key, Value())) for row in rows]
            points = sorted((x, cell.mean, cell.std) for x, cell in cells if math.isfinite(cell.mean))
            drawn += [Line(rows[0].method, rows[0].method, points)] if points else []
        beside = [
            line_of(row, [(0, cell.mean, cell.std)]) for row in levels if (cell := row.values.get(column.key, Value()))
        ]
        if drawn:
            ticks = [(places[value], value) for value in values]
            unit = f"{column.title} (%)" if column.key != "bwf" else "BWF (points)"
            panels.append(
                Panel(name, unit, drawn, levels=beside, scale=scale, ticks=ticks, borders=sorted(recommended))
            )
    return panels


def _varied(table: Table, name: str) -> list[list[Row]]:
    """Group the rows that differ only in setting `name`, or in settings that it bounds or determines."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in table.rows:
        if name in row.settings:
            fixed = {name, *(key for key, bound in at_most(row.method).items() if bound == name)}
            if name.startswith("data."):  # settings of a method that follow from its data, such as method.num_frames
                fixed |= set(of_data(name.removeprefix("data.")))
            others = tuple(sorted((key, value) for key, value in row.settings.items() if key not in fixed))
            groups.setdefault((row.method, others), []).append(row)
    return [rows for rows in groups.values() if len({row.settings[name] for row in rows}) > 1]


def _places(values: Sequence[str]) -> tuple[dict[str, float], Scale]:
    """Return value -> x position, and the scale of the axis.

    Numbers are at their value, on a logarithmic axis if they span a factor of 20. Text, and numbers that span this
    factor but include 0 or less, are at positions 0, 1, 2, ...
    """
    numbers = [_number(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        return {value: float(place) for place, value in enumerate(values)}, "linear"
    is_wide = max(numbers) >= 20 * min((abs(number) for number in numbers if number), default=math.inf)
    if is_wide and min(numbers) <= 0:
        return {value: float(place) for place, value in enumerate(values)}, "linear"
    return dict(zip(values, numbers)), "log" if is_wide else "linear"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def line_of(row: Row, points: Sequence[tuple[float, ...]]) -> Line:
    """Return the line of a row through points (x, mean) or (x, mean, std)."""
    return Line(
        row.label, row.method, [(point[0], point[1], point[2] if len(point) > 2 else math.nan) for point in points]
    )
