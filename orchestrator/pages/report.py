"""The report of a sweep, a rerun or a stream's runs: one page that needs no other file, so that it can be mailed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ctvr.orchestrator.pages.forgetting import ModelHistory, forgetting_explorer
from ctvr.orchestrator.pages.html import page
from ctvr.orchestrator.pages.matrix_html import matrices_html
from ctvr.orchestrator.tables.table import Row, Table, cell, number
from ctvr.orchestrator.tables.table_figures import looks

DASHES = {"-": "", "--": ' stroke-dasharray="6 3"', ":": ' stroke-dasharray="2 3"', "-.": ' stroke-dasharray="8 3 2 3"'}


def report(title: str, facts: Sequence[tuple[str, str]], tables: Sequence[Table], memories: Sequence[ModelHistory],
           names: Sequence[str]) -> str:  # fmt: skip
    """Return a complete document.

    Args:
        title: what was run.
        facts: (heading, text): the question, the budget, the winner and its confirmation.
        tables: of the complete runs.
        memories: of the rows' first runs.
        names: of the stream's tasks.
    """
    said = "".join(f"<p><b>{escape(what)}</b><br>{escape(text)}</p>" for what, text in facts)
    parts = [said]
    for table in tables:
        parts += [f"<h2>{escape(table.heading)}</h2>", table_html(table), curves_html(table), matrices_html(table)]
    if memories:
        parts.append(forgetting_explorer(memories, names))
    return page(title, "\n".join(parts))


def table_html(table: Table) -> str:
    """Return the table as HTML with all footnotes below it."""
    heads = ["Method", *(column.title for column in table.columns), *table.comparison_titles, "Seeds"]
    rows = "".join(_row(table, row) for row in table.rows)
    notes = [*table.notes, *_marks(table)]
    notes += dict.fromkeys(f"Paper: {row.paper_source}" for row in table.rows if row.paper)
    notes += [f"{row.label}, paper: {mark}" for row in table.rows if row.paper for mark in row.paper_marks]
    listed = "".join(f"<li><small>{escape(note)}</small></li>" for note in notes)
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div><ul>{listed}</ul>'


def _marks(table: Table) -> list[str]:
    """Return the footnotes of rows; one that several rows share is listed once, after their names."""
    rows: dict[str, list[str]] = {}
    for row in table.rows:
        for mark in row.marks:
            rows.setdefault(mark, []).append(row.label)
    return [f"{', '.join(labels)}: {mark}" for mark, labels in rows.items()]


def _row(table: Table, row: Row) -> str:
    cells = [f"<td>{escape(row.label)}</td>"]
    for column in table.columns:
        best = ' class="best"' if table.is_best(row, column) else ""
        cells.append(f"<td{best}>{escape(cell(row, column))}</td>")
    cells += [f"<td>{escape(text)}</td>" for text in (*table.comparison_cells(row), str(len(row.seeds)))]
    return f"<tr>{''.join(cells)}</tr>{_printed(table, row)}"


def _printed(table: Table, row: Row) -> str:
    """Return the paper's numbers for a row as the next line; empty if it prints none."""
    if not row.paper:
        return ""
    printed = [number(row.paper[c.key], c.digits) if c.key in row.paper else "" for c in table.columns]
    cells = "".join(
        f"<td>{escape(text)}</td>" for text in ["paper", *printed, *[""] * len(table.comparison_titles), ""]
    )
    return f'<tr class="paper">{cells}</tr>'


def curves_html(table: Table) -> str:
    """Plot R@1 (or accuracy) after each task, a line for each row, as inline SVG with its legend."""
    rows = [row for row in table.rows if len(row.curve) > 1]
    if not rows:
        return ""
    width, height, left, bottom = 420, 250, 40, 30
    steps = sorted({step for row in rows for step, _, _ in row.curve})
    values = [mean for row in rows for _, mean, _ in row.curve]
    low, high = min(values), max(max(values), min(values) + 1e-6)

    def place(step: int, value: float) -> tuple[float, float]:
        x = left + (step - steps[0]) / max(1, steps[-1] - steps[0]) * (width - left - 10)
        return round(x, 1), round(10 + (high - value) / (high - low) * (height - bottom - 20), 1)

    parts = []
    for tick in (low, (low + high) / 2, high):
        y = place(steps[0], tick)[1]
        parts.append(f'<path d="M{left} {y}H{width}" stroke="var(--line)"/><text x="0" y="{y + 4}">{tick:.1f}</text>')
    parts += [f'<text x="{place(step, low)[0] - 3}" y="{height - 5}">{step}</text>' for step in steps]
    legend = []
    for row, (hue, drawn) in zip(rows, looks(rows)):
        colour, dash = f"var(--c{hue})", DASHES[drawn]
        points = [place(step, mean) for step, mean, _ in row.curve]
        line = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points]
        legend.append(f'<span style="color:{colour}">&#9679;</span> {escape(row.label)}')
    alt = f"{table.measured} in percent after each task: {', '.join(row.label for row in rows)}"
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(alt, quote=True)}">'
        f"{''.join(parts)}</svg><figcaption><small>{table.measured} (%) after each task: "
        f"{' &nbsp; '.join(legend)}</small></figcaption></figure>"
    )
