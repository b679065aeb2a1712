"""Colored tables of R@1 (or accuracy) of every task after every task, readable on a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ctvr.orchestrator.tables.table import Row, Table


def matrices_html(table: Table) -> str:
    """Return a foldable section (HTML) with the matrices of each row, or "" without matrices.

    All matrices have one color scale. The best row is first.
    """
    rows = [row for row in table.rows if row.matrices]
    if not rows:
        return ""
    values = [value for row in rows for matrix in row.matrices.values() for line in matrix for value in line]
    top = max([value for value in values if value == value] or [1.0]) or 1.0
    best = next((row for row in rows if table.columns and table.is_best(row, table.columns[0])), rows[0])
    folds = "".join(
        _fold(row, top, row is best or len(rows) < 3) for row in sorted(rows, key=lambda row: row is not best)
    )
    measured = table.measured[0].upper() + table.measured[1:]
    return (
        f'<h3>{measured} of every task after every task</h3><p class="soft">Row: tasks learned. Column: the task of '
        f"the queries, in percent, mean over seeds. One color scale for all, 0 to {top:.1f}.</p>{folds}"
    )


def notebook_html(title: str, matrices: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Return a title and matrices (row: tasks learned, column: task of the queries) as HTML without a style sheet."""
    top = max((value for matrix in matrices.values() for line in matrix for value in line if value == value), default=1)
    parts = "".join(
        f'<div style="margin-right:2rem"><small>{escape(name)}, R@1 in percent; row: tasks learned</small>'
        f"{_grid(matrix, top or 1)}</div>"
        for name, matrix in matrices.items()
        if matrix
    )
    return f'<p><b>{escape(title)}</b></p><div style="--c0:#0072b2;display:flex;flex-wrap:wrap">{parts}</div>'


def _fold(row: Row, top: float, is_open: bool) -> str:
    grids = "".join(
        f'<figure class="card"><figcaption><small>{escape(name)}</small></figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(f"{row.label}, {name}", quote=True)}">'
        f"{_grid(matrix, top)}</div></figure>"
        for name, matrix in row.matrices.items()
    )
    return (
        f'<details{" open" * is_open}><summary>{escape(row.label)}</summary><div class="grid">{grids}</div></details>'
    )


def _grid(matrix: Sequence[Sequence[float]], top: float) -> str:
    head = "".join(f"<th>{task}</th>" for task in range(1, max(map(len, matrix)) + 1))
    lines = "".join(
        f"<tr><th>{number}</th>{''.join(_cell(value, top) for value in line)}</tr>"
        for number, line in enumerate(matrix, 1)
    )
    return f'<table class="heat"><tr><td></td>{head}</tr>{lines}</table>'


def _cell(value: float, top: float) -> str:
    if value != value:  # not measured
        return "<td></td>"
    share = round(60 * value / top)  # keeps the text readable, also in dark mode
    return f'<td style="background:color-mix(in srgb,var(--c0) {share}%,transparent)">{value:.0f}</td>'
