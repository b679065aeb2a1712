"""The report of a sweep, a rerun or the runs of a stream: one page without other files, which can be mailed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ctvr.orchestrator.pages.charts import cost_html, curves_html, ranks_html
from ctvr.orchestrator.pages.forgetting import ModelHistory, forgetting_explorer
from ctvr.orchestrator.pages.html import page
from ctvr.orchestrator.pages.matrix_html import matrices_html
from ctvr.orchestrator.pages.search_space import SearchedSpace
from ctvr.orchestrator.pages.searched import searched_html
from ctvr.orchestrator.tables.curves import reference_curves
from ctvr.orchestrator.tables.formats import with_titles
from ctvr.orchestrator.tables.table import Column, Row, Table, cell, number

MAIN = ("r1", "bwf", "fr", "accuracy", "forgetting")  # keys of the columns that a narrow screen shows first
ARROWS = {"up": " \N{UPWARDS ARROW}", "down": " \N{DOWNWARDS ARROW}", "": ""}
MEANINGS = {  # beginning of a column's title -> meaning with its unit
    "R@": "R@k: percent of captions whose own video is among the first k; a tie counts by its expected value",
    "MedR": "MedR, MeanR: median and mean rank",
    "BWF": "BWF: backward forgetting, points of R@1 that earlier tasks have lost in their own galleries",
    "Params": "Params (M): millions of trained parameters",
}


def report(
    title: str,
    facts: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    memories: Sequence[ModelHistory],
    names: Sequence[str],
    searched: SearchedSpace | None = None,
    status: str = "",
    confused: str = "",
) -> str:
    """Return the report as a complete HTML document.

    Args:
        title: name of the sweep, rerun or stream.
        facts: (heading, text): the question, the budget, the winner and its confirmation.
        tables: tables of the complete runs.
        memories: found and lost queries of the first run of each row.
        names: names of the stream's tasks.
        searched: the space and the trials of the search, if one was run.
        confused: the heat map of confused categories as HTML, shown with the first table.
        status: what limits the results, for example "all runs: fewer epochs than recommended; 1 seed".
    """
    parts = [f'<p class="soft">{escape(status)}</p>' if status else ""]
    parts += [_best(table, f" ({table.heading})" if len(tables) > 1 else "") for table in tables]
    parts += [_fact(what, text) for what, text in facts]
    for table in tables:
        heading = "Results" if table.heading == title else table.heading
        parts += [f"<h2>{escape(heading)}</h2>", matrices_html(table), table_html(table), curves_html(table)]
        more = f"{ranks_html(table)}{cost_html(table)}{confused if table is tables[0] else ''}"
        parts.append(f'<div class="wide">{more}</div>' if more else "")
    if memories:
        parts.append(forgetting_explorer(memories, names))
    if searched is not None:
        parts.append(searched_html(searched))
    if tables:
        parts.append("<h2>Details</h2>")
    for table in tables:
        parts.append(notes_html(table))
    return page(title, "\n".join(parts))


def _best(table: Table, where: str) -> str:
    """Return a line (HTML) for each block of the table: its best row, with the value in the first column."""
    found = []
    untrained = reference_curves(table).get("zero-shot", []) if table.measured == "R@1" else []
    for title, rows in table.blocks if table.columns else ():
        column = table.columns[0]
        row = rows[0] if len(rows) == 1 else next((row for row in rows if _wins(table, row)), None)
        if row is None or column.key not in row.values:
            continue
        text = f"{escape(row.label)}, <b>{escape(column.title)} {escape(cell(row, column))}</b>"
        if untrained and row.method != "zero_shot":
            text += f", {row.values[column.key].mean - untrained[-1][1]:+.2f} over zero-shot"
        head = ", ".join(filter(None, (escape(title), "best" * (len(rows) > 1)))) or "result"
        found.append(f"<p>{head[0].upper()}{head[1:]}: {text}{escape(where)}</p>")
    return "\n".join(found)


def _fact(what: str, text: str) -> str:
    """Return a fact as HTML. A text of several lines keeps its alignment."""
    if "\n" in text:
        return f"<p><b>{escape(what)}</b></p><pre>{escape(text)}</pre>"
    return f"<p><b>{escape(what)}</b><br>{escape(text)}</p>"


def table_html(table: Table) -> str:
    """Return the table as HTML, then the meanings of its columns. A narrow screen shows the main columns first."""
    heads = [_cell("th", "Method")]
    heads += [_cell("th", f"{c.title}{ARROWS[c.better]}", "" if _is_main(c) else "more") for c in table.columns]
    heads += [_cell("th", title, "more wrap") for title in table.comparison_titles]
    heads.append(_cell("th", "Seeds"))
    rows = "".join(_title(title, len(heads)) + _row(table, row) for row, title in with_titles(table))
    meant = [text for start, text in MEANINGS.items() if any(c.title.startswith(start) for c in table.columns)]
    if any(_wins(table, row) for row in table.rows):
        meant.append(f"\N{BLACK STAR}: the highest {table.measured} of its block's rows")
    said = escape(
        "; ".join([*meant, "bold: the best of its column and block", "\N{PLUS-MINUS SIGN}: sample standard deviation"])
    )
    return (
        '<div class="table"><label class="all"><input type="checkbox"> all columns</label>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="table of {escape(table.heading, quote=True)}">'
        f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>{rows}</tbody></table></div></div>"
        f"<p><small>{said}.</small></p>"
    )


def notes_html(table: Table) -> str:
    """Return all notes and footnotes of a table as a folded list (HTML), or "" without notes."""
    notes = [*table.notes, *_marks(table)]
    notes += dict.fromkeys(f"Paper: {row.paper_source}" for row in table.rows if row.paper)
    notes += [f"{row.label}, paper: {mark}" for row in table.rows if row.paper for mark in row.paper_marks]
    listed = "".join(f"<li><small>{escape(note)}</small></li>" for note in notes)
    title = f"{len(notes)} note{'s' * (len(notes) > 1)} on the rows of {escape(table.heading)}"
    return f"<details><summary>{title}</summary><ul>{listed}</ul></details>" if notes else ""


def _cell(tag: str, text: str, classes: str = "") -> str:
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{f' class={chr(34)}{classes}{chr(34)}' if classes else ''}>{escape(text)}</{tag}>"


def _is_main(column: Column) -> bool:
    return column.key in MAIN


def _wins(table: Table, row: Row) -> bool:
    return bool(table.columns) and table.is_best(row, table.columns[0])


def _marks(table: Table) -> list[str]:
    """Return the footnotes of the rows, each once, with the labels of its rows before it."""
    rows: dict[str, list[str]] = {}
    for row in table.rows:
        for mark in row.marks:
            rows.setdefault(mark, []).append(row.label)
    return [f"{', '.join(labels)}: {mark}" for mark, labels in rows.items()]


def _title(title: str, columns: int) -> str:
    """Return the title of a block of rows as a table row (HTML), or "" without a title."""
    return f'<tr><th scope="rowgroup" colspan="{columns}">{escape(title)}</th></tr>' if title else ""


def _row(table: Table, row: Row) -> str:
    wins = _wins(table, row)
    cells = [_cell("td", f"{row.label} \N{BLACK STAR}" if wins else row.label)]
    for column in table.columns:
        classes = "best " * table.is_best(row, column) + "more" * (not _is_main(column))
        cells.append(_cell("td", cell(row, column), classes.strip()))
    cells += [_cell("td", text, "more wrap") for text in table.comparison_cells(row)]
    cells.append(_cell("td", str(len(row.seeds))))
    return f"<tr{' class=winner' * wins}>{''.join(cells)}</tr>{_printed(table, row)}"


def _printed(table: Table, row: Row) -> str:
    """Return the published numbers for a row as a table row (HTML), or "" if there are none."""
    if not row.paper:
        return ""
    cells = [_cell("td", "paper")]
    for column in table.columns:
        text = number(row.paper[column.key], column.digits) if column.key in row.paper else ""
        cells.append(_cell("td", text, "" if _is_main(column) else "more"))
    cells += [_cell("td", "", "more")] * len(table.comparison_titles) + [_cell("td", "")]
    return f'<tr class="paper">{"".join(cells)}</tr>'
