"""Charts as inline SVG: R@1 after each task, and shared helpers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ctvr.orchestrator.tables.curves import own_curve, reference_curves, untrained_row
from ctvr.orchestrator.tables.table import Row, Table, Value
from ctvr.orchestrator.tables.table_figures import choose_styles, select_curves

Point = tuple[float, float]  # (x, percent)
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)  # possible steps between ticks, in percent
MARKERS = (  # circle, square, triangle, diamond
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0",
    "M-3 -3h6v6h-6z",
    "M0 -4.5L4 3H-4z",
    "M0 -4.5L4 0L0 4.5L-4 0z",
)
DASHES = {"-": "", "--": ' stroke-dasharray="6 3"', ":": ' stroke-dasharray="2 3"', "-.": ' stroke-dasharray="8 3 2 3"'}
ROUND = (1, 2, 5)  # ticks of a logarithmic axis, times powers of ten


@dataclass(frozen=True)
class Axes:
    """The axes of a chart: `x` and `y` are their titles, `ticks` are the values below the x axis."""

    x: str
    y: str
    ticks: Sequence[float]
    caption: str
    is_log: bool = False  # whether the x axis is logarithmic

    def share(self, x: float) -> float:
        """Return the position of a value on the x axis, from 0 to 1."""
        low, high, value = (math.log(each) if self.is_log else each for each in (self.ticks[0], self.ticks[-1], x))
        return (value - low) / (high - low) if high > low else 0.5


def curves_html(table: Table) -> str:
    """Return charts (HTML) of R@1 after each task, among all videos so far and in each task's own gallery.

    For images, they show accuracy. R@1 among all videos also falls because the gallery grows. Dashed lines are
    untrained CLIP and a random order of the videos. The result is "" if no row has several tasks.
    """
    rows = select_curves(table)
    if not rows:
        return ""
    charts = [
        ("over all videos so far", [[point[:2] for point in row.curve] for row in rows], False),
        ("in each task's own gallery, mean over the tasks learned", [own_curve(row) for row in rows], True),
    ]
    untrained, drawn = untrained_row(table), ""
    for where, curves, own in charts:
        steps = sorted({step for curve in curves for step, _ in curve})
        if not steps:
            continue
        dashed = reference_curves(table, own)
        shown = {name: [point for point in curve if point[0] in steps] for name, curve in dashed.items()}
        names = [
            row.label + _gain(curve, shown.get("zero-shot", []) if row is not untrained else [])
            for row, curve in zip(rows, curves)
        ]
        caption = f"{table.measured} after each task, {where}"
        drawn += line_chart(rows, names, curves, shown, Axes("tasks learned", f"{table.measured} (%)", steps, caption))
    said = (
        "The distance to the line of zero-shot CLIP, which is untrained and forgets nothing, is the gain of training."
    )
    has_untrained = len(rows) > 1 and "zero-shot" in reference_curves(table)
    return f'<div class="wide">{drawn}</div>{f"<p><small>{said}</small></p>" if has_untrained else ""}'


def line_chart(
    rows: Sequence[Row], names: Sequence[str], curves: Sequence[Sequence[Point]], dashed: Mapping[str, Sequence[Point]],
    axes: Axes,
) -> str:  # fmt: skip
    """Return a chart with a line for each row and a legend, as HTML with inline SVG.

    Args:
        rows: the rows, which determine colors and line styles.
        names: names of the rows in the legend.
        curves: points (x, percent) of each row. A single point is drawn as a marker.
        dashed: label -> points of each reference line.
        axes: titles and ticks. The ticks must span the x values of all points.
    """
    width, height, left, bottom = 460, 270, 48, 44
    ticks = ticks_around([mean for curve in (*curves, *dashed.values()) for _, mean in curve if math.isfinite(mean)])
    low, high = ticks[0], ticks[-1]

    def place(x: float, value: float) -> tuple[float, float]:
        y = 10 + (high - value) / (high - low) * (height - bottom - 10)
        return round(left + axes.share(x) * (width - left - 12), 1), round(y, 1)

    parts = []
    for tick in ticks:
        y = place(axes.ticks[0], tick)[1]
        parts.append(f'<path d="M{left} {y}H{width}" stroke="var(--line)"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<text x="{place(x, low)[0]}" y="{height - bottom + 18}" text-anchor="middle">{x:g}</text>' for x in axes.ticks
    ]
    middle = (height - bottom) / 2
    parts.append(f'<text x="{(left + width) / 2}" y="{height - 6}" text-anchor="middle">{escape(axes.x)}</text>')
    parts.append(
        f'<text x="10" y="{middle}" text-anchor="middle" transform="rotate(-90 10 {middle})">{escape(axes.y)}</text>'
    )
    legend = []
    for index, (row, name, curve, (hue, drawn)) in enumerate(zip(rows, names, curves, choose_styles(rows))):
        colour, dash = f"var(--c{hue})", DASHES["--" if row.method == "zero_shot" else drawn]
        points = [place(x, mean) for x, mean in curve if math.isfinite(mean)]
        line = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [marker(index, x, y, colour) for x, y in points]
        sample = f'<path d="M0 7H40" stroke="{colour}" stroke-width="2"{dash}/>{marker(index, 20, 7, colour)}'
        legend.append(f'<li><svg viewBox="0 0 40 14" aria-hidden="true">{sample}</svg>{escape(name)}</li>')
    has_row = any(row.method == "zero_shot" for row in rows)
    for name, curve in dashed.items():
        points = [place(x, mean) for x, mean in curve]
        if name != "zero-shot" or not has_row:
            line = " L".join(f"{x} {y}" for x, y in points)
            parts.append(f'<path d="M{line}" fill="none" stroke="var(--soft)" stroke-width="1.5"{DASHES["--"]}/>')
        x, y = points[-1]
        y += 14 if name == "zero-shot" and y + 14 < height - bottom else -6  # most rows end above zero-shot
        parts.append(f'<text x="{x}" y="{y}" text-anchor="end">{name} {curve[-1][1]:.1f}</text>')
    ends = [f"{name} ends at {curve[-1][1]:.1f}" for name, curve in zip(names, curves) if curve]
    ends += [f"{name} ends at {curve[-1][1]:.1f}" for name, curve in dashed.items()]
    alt = f"{axes.caption}, in percent: {', '.join(ends)}"
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(alt, quote=True)}">'
        f"{''.join(parts)}</svg><figcaption><small>{escape(axes.caption)}"
        f'</small><ul class="key">{"".join(legend)}</ul></figcaption></figure>'
    )


def _gain(curve: Sequence[Point], untrained: Sequence[Point]) -> str:
    """Return the gain of a row over zero-shot after the last task as text for the legend, or "" if it is unknown."""
    if not curve or not untrained or curve[-1][0] != untrained[-1][0]:
        return ""
    return f" ({curve[-1][1] - untrained[-1][1]:+.2f} over zero-shot)"


def ticks_around(values: Sequence[float]) -> list[float]:
    """Return the ticks of an axis: three to six multiples of a round step that enclose values in percent."""
    low, high = min(values), max(values)
    step = next(each for each in STEPS if math.ceil(high / each) - math.floor(low / each) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first < 2:
        last = first + 2
    return [each * step for each in range(first, last + 1)]


def marker(index: int, x: float, y: float, colour: str) -> str:
    """Return the marker (SVG) of the `index`-th row at (x, y). Shapes distinguish rows in gray and in print."""
    shape = MARKERS[index % len(MARKERS)]
    return f'<path d="{shape}" transform="translate({x} {y})" fill="{colour}"/>'


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
