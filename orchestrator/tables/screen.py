"""Result tables as plain text for a terminal or a pipe: the columns that fit, and the notes needed to read them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ctvr.orchestrator.tables.formats import LONGEST, Footnotes, last_titles, round_numbers, shared_marks, with_titles
from ctvr.orchestrator.tables.table import Difference, Row, Table, Value, cell, decimals, number

LABEL = 40  # maximum characters of a row's name in a table that would be wider than the screen
LINES = 10  # maximum lines of notes
# Columns that are dropped first from a table that is wider than the screen
DROPPED = ("R@1 vs best", "Time", "Trials", "MeanR", "MedR", "R@10", "R@5", "Params (M)")
# First words of notes that only the files contain: on columns, and on settings that differ from the papers
IN_FILES = (
    "Mean and sample standard deviation",
    "Trials: ",
    "R@1 vs best: ",
    "Every row ",
    "Paper: ",
    "chosen by us",
    "deviates from",
    "differs from",
    "also differs from",
    "re-implemented",
)


def to_text(tables: Table | Sequence[Table], width: int = 100) -> str:
    """Return each table as aligned text, with # after the best value of a column, followed by its main notes.

    Columns are dropped until a table is at most `width` (but at least 60) characters wide, or only the main columns are
    left.
    """
    several = [tables] if isinstance(tables, Table) else tables
    return "\n\n".join(_text(table, max(width, 60)) for table in several) + "\n"


def pairs_text(
    table: Table, pairs: Sequence[tuple[Row, Row, Difference]], reasons: Mapping[str, str], width: int = 100
) -> str:
    """Return a line for each pair of rows with the difference of their R@1, then the rows that are left out and why.

    Args:
        pairs, reasons: the results of `significance.all_pairs`.
    """
    lines = [(f"{_shown(first.label)} - {_shown(second.label)}", str(found)) for first, second, found in pairs]
    wide = max([len(name) for name, _ in lines] or [0])
    drawn = [f"{name.ljust(wide)}  {found}" for name, found in lines] or ["No two rows can be compared."]
    told = "Difference of R@1 in points, with intervals and p that are simultaneous for all pairs. * p < 0.05."
    notes = [*[told] * bool(lines), *(f"{label}: {reason}." for label, reason in reasons.items())]
    below = [line for note in notes for line in textwrap.wrap(_shown(note), max(width, 60), subsequent_indent="    ")]
    return "\n".join([f"All pairs of {_shown(table.heading)}", "", *drawn, "", *below]) + "\n"


def _text(table: Table, width: int) -> str:
    feet = Footnotes()
    lines = _cells(table, feet)
    if _width_of(_widths(lines)) > width:
        lines = [[_cut(line[0]), *line[1:]] for line in lines]
    dropped = []
    while _width_of(_widths(lines)) > width and (title := _next_dropped(lines[0])):
        place = next(at for at, each in enumerate(lines[0]) if _plain(each) == title)
        dropped.append(title)
        lines = [[*line[:place], *line[place + 1 :]] for line in lines]
    widths = _widths(lines)
    drawn = [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(wide) for cell, wide in zip(line[1:], widths[1:]))]).rstrip()
        for line in lines
    ]
    footnotes = [f"All rows: {mark}" for mark in shared_marks(table) if _is_shown(mark)]
    footnotes += [f"[{sign}] {text}" for sign, text in feet.all()]
    footnotes += [note for note in table.notes if _is_shown(note)]
    footnotes = list(map(round_numbers, footnotes))
    if any(cell.endswith("#") for line in lines[1:] for cell in line[1:]):
        footnotes.insert(0, "# the best of its column" + " and block" * (len(table.blocks) > 1))
    notes, left = _fitting(footnotes, width)
    left += sum(not _is_shown(note) for note in [*table.notes, *dict.fromkeys(m for r in table.rows for m in r.marks)])
    more = [f"{len(dropped)} columns ({', '.join(dropped)})"] if dropped else []
    more += [f"{left} notes"] if left else []
    end = textwrap.wrap(f"Also in the files: {' and '.join(more)}.", width) if more else []
    return "\n".join([_shown(table.heading), "", drawn[0], "-" * max(map(len, drawn)), *drawn[1:], "", *notes, *end])


def _cells(table: Table, feet: Footnotes) -> list[list[str]]:
    """Return the cells of the header and of each row. The published numbers of a row are a row after it."""
    arrows, shared = {"up": " ↑", "down": " ↓", "": ""}, shared_marks(table)
    lines = [["Method", *(f"{c.title}{arrows[c.better]}" for c in table.columns), *last_titles(table)]]
    for row, title in with_titles(table):
        if title:
            lines.append([f"({title})", *[""] * (len(lines[0]) - 1)])
        cells = []
        for column in table.columns:
            exact = row.values.get(column.key, Value()).mean
            text = cell(row, replace(column, digits=decimals(exact, column.digits)))
            cells.append(text + ("#" if table.is_best(row, column) else " "))
        last = [*map(_shown, table.comparison_cells(row)), str(len(row.seeds)), *map(_shown, table.cost_cells(row))]
        lines.append([_with_signs(row, feet, shared), *cells, *last])
        if row.paper:
            printed = [number(row.paper[c.key], c.digits) + " " if c.key in row.paper else "" for c in table.columns]
            lines.append([f"  paper [{feet.source(row.paper_source)}]", *printed, *[""] * len(last_titles(table))])
    return lines


def _with_signs(row: Row, feet: Footnotes, shared: Sequence[str]) -> str:
    signs = feet.signs([mark for mark in row.marks if _is_shown(mark) and mark not in shared])
    return f"{_shown(row.label)} [{','.join(signs)}]" if signs else _shown(row.label)


def _is_shown(note: str) -> bool:
    return not note.startswith(IN_FILES) and len(note) <= LONGEST


def _cut(label: str) -> str:
    """Shorten the name of a row to `LABEL` characters, but keep the letters of its footnotes."""
    name, mark, signs = label.rpartition(" [")
    name, signs = (name, mark + signs) if mark else (label, "")
    return (name if len(name) <= LABEL else f"{name[: LABEL - 3]}...") + signs


def _next_dropped(titles: Sequence[str]) -> str:
    """Return the title of the column to drop next, or "" if only the names, one metric and the seeds are left."""
    plain = [_plain(title) for title in titles]
    known = [title for title in DROPPED if title in plain]
    others = [title for title in plain[2:] if title not in ("BWF", "Seeds")]
    return next(iter([*known, *reversed(others)]), "BWF" if "BWF" in plain else "")


def _plain(title: str) -> str:
    return title.removesuffix(" ↑").removesuffix(" ↓")


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]


def _width_of(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _fitting(notes: Sequence[str], width: int) -> tuple[list[str], int]:
    """Return as many of the first notes as fit in `LINES` lines, wrapped, and the number of the remaining notes."""
    lines: list[str] = []
    for place, note in enumerate(notes):
        wrapped = textwrap.wrap(_shown(note), width, subsequent_indent="    ")
        if len(lines) + len(wrapped) > LINES and lines:
            return lines, len(notes) - place
        lines += wrapped
    return lines, 0


def _shown(text: str) -> str:
    """Return text on one line, without terminal control characters."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())
