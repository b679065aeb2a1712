"""Charts as inline SVG: R@1 after each task, and shared helpers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.table_figures import choose_styles, select_curves

STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)  # between ticks, in percent
MARKERS = (  # circle, square, triangle, diamond
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0",
    "M-3 -3h6v6h-6z",
    "M0 -4.5L4 3H-4z",
    "M0 -4.5L4 0L0 4.5L-4 0z",
)
DASHES = {"-": "", "--": ' stroke-dasharray="6 3"', ":": ' stroke-dasharray="2 3"', "-.": ' stroke-dasharray="8 3 2 3"'}


def curves_html(table: Table) -> str:
    """Plot R@1 (or accuracy) after each task, a line for each row, as inline SVG with its legend."""
    rows = select_curves(table)
    if not rows:
        return ""
    width, height, left, bottom = 460, 270, 48, 44
    steps = sorted({step for row in rows for step, _, _ in row.curve})
    ticks = ticks_around([mean for row in rows for _, mean, _ in row.curve])
    low, high = ticks[0], ticks[-1]

    def place(step: int, value: float) -> tuple[float, float]:
        x = left + (step - steps[0]) / max(1, steps[-1] - steps[0]) * (width - left - 10)
        return round(x, 1), round(10 + (high - value) / (high - low) * (height - bottom - 10), 1)

    parts = []
    for tick in ticks:
        y = place(steps[0], tick)[1]
        parts.append(f'<path d="M{left} {y}H{width}" stroke="var(--line)"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<text x="{place(step, low)[0]}" y="{height - bottom + 18}" text-anchor="middle">{step}</text>'
        for step in steps
    ]
    middle = (height - bottom) / 2
    parts.append(f'<text x="{(left + width) / 2}" y="{height - 6}" text-anchor="middle">tasks learned</text>')
    parts.append(
        f'<text x="10" y="{middle}" text-anchor="middle" transform="rotate(-90 10 {middle})">'
        f"{escape(table.measured)} (%)</text>"
    )
    legend = []
    for index, (row, (hue, drawn)) in enumerate(zip(rows, choose_styles(rows))):
        colour, dash = f"var(--c{hue})", DASHES[drawn]
        points = [place(step, mean) for step, mean, _ in row.curve]
        line = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [marker(index, x, y, colour) for x, y in points]
        sample = f'<path d="M0 7H40" stroke="{colour}" stroke-width="2"{dash}/>{marker(index, 20, 7, colour)}'
        legend.append(f'<li><svg viewBox="0 0 40 14" aria-hidden="true">{sample}</svg>{escape(row.label)}</li>')
    alt = f"{table.measured} in percent after each task: {', '.join(row.label for row in rows)}"
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(alt, quote=True)}">'
        f"{''.join(parts)}</svg><figcaption><small>{escape(table.measured)} over all videos so far, after each task"
        f'</small><ul class="key">{"".join(legend)}</ul></figcaption></figure>'
    )


def ticks_around(values: Sequence[float]) -> list[float]:
    """Return three to six round numbers around values in percent."""
    low, high = min(values), max(values)
    step = next(each for each in STEPS if math.ceil(high / each) - math.floor(low / each) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first < 2:
        last = first + 2
    return [each * step for each in range(first, last + 1)]


def marker(index: int, x: float, y: float, colour: str) -> str:
    """Return a marker of the `index`-th row at a place: shapes tell rows apart in grey and in print."""
    shape = MARKERS[index % len(MARKERS)]
    return f'<path d="{shape}" transform="translate({x} {y})" fill="{colour}"/>'
