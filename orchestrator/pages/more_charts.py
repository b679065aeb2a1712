"""Further charts of a table's rows: the distribution of ranks, and R@1 against the time of a run."""

from __future__ import annotations

import math

from ctvr.orchestrator.pages.charts import Axes, line_chart
from ctvr.orchestrator.tables.table import Table, Value

ROUND = (1, 2, 5)  # ticks of a logarithmic axis, times powers of ten


def ranks_html(table: Table) -> str:
    """Return a chart (HTML) of the share of captions whose video has rank k or less, or "" if no row has ranks."""
    rows = [row for row in table.rows if row.ranks]
    if not rows or table.measured != "R@1":
        return ""
    largest = max(row.ranks[-1][0] for row in rows)
    ticks = [each for each in _ticks(1, largest) if each <= largest]
    ticks = [*ticks[: -1 if largest < 1.5 * ticks[-1] else None], largest]
    size = sum(table.galleries)
    is_own = any(column.key == "fr" for column in table.columns)  # CVLM searches own galleries, of several sizes
    chance = [(k, min(100.0, 100 * k / size)) for k, _ in rows[0].ranks] if size and not is_own else []
    axes = Axes("rank k, logarithmic", "captions with rank k or less (%)", ticks, _RANKS, is_log=True)
    names = [row.label for row in rows]
    return line_chart(rows, names, [row.ranks for row in rows], {"chance": chance} if chance else {}, axes)


def cost_html(table: Table) -> str:
    """Return a chart (HTML) of R@1 against the mean time of a run, or "" for fewer than two different times."""
    costs = [
        (row, row.values.get("run_seconds", Value()).mean, row.values.get("r1", Value()).mean) for row in table.rows
    ]
    known = [each for each in costs if math.isfinite(each[2]) and math.isfinite(each[1]) and each[1] > 0]
    times = [seconds for _, seconds, _ in known]
    if len({round(seconds, 3) for seconds in times}) < 2:
        return ""
    axes = Axes("seconds of a run, logarithmic", "R@1 (%)", _ticks(min(times), max(times)), _COST, is_log=True)
    rows = [row for row, _, _ in known]
    return line_chart(rows, [row.label for row in rows], [[(x, y)] for _, x, y in known], {}, axes)


_RANKS = "Share of captions whose video is among the first k, after the last task"
_COST = "R@1 after the last task against the time of a run: training and evaluation of all tasks, mean over seeds"


def _ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: `ROUND` times powers of ten, which enclose the range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    listed = [times * 10.0**power for power in range(first, last + 1) for times in ROUND]
    start = max(each for each in listed if each <= low * (1 + 1e-9))
    end = min(each for each in listed if each >= high * (1 - 1e-9))
    return [each for each in listed if start <= each <= end]
