"""Comparison of rows with papers: the published numbers of equal settings, or the settings that differ.

A row is compared with paper runs in this order: the printed row that it reproduces (tags `ctvr.row` and
`ctvr.table_name`), its method's main table, every other printed row of its method. The first one with all its settings
gives the numbers. If there is none, the row gets no numbers, and a footnote lists the differences from the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.tables.index_age import age_columns, age_values
from ctvr.orchestrator.tables.paper_numbers import PublishedRow, with_paper
from ctvr.orchestrator.tables.setting_diff import CVLM_BACKBONE, differences, format_differences
from ctvr.orchestrator.tables.setting_diff import footnote as difference_note
from ctvr.orchestrator.tables.table import Column, Row, Value
from ctvr.orchestrator.tables.table_columns import ORACLE, PRINTED, SCALE, TWINS

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

EXTRA_COLUMNS = "ctvr.columns"  # tag: keys of table_columns.PRINTED that a table of these runs has, comma-separated
ROW, TABLE_NAME = "ctvr.row", "ctvr.table_name"  # tags: a row's name in its table, and a table of the package
SHARED = "Every row differs from {what} in: {settings}."


@dataclass(frozen=True)
class PaperRun:
    """A run of a paper."""

    settings: Settings  # all settings, resolved
    numbers: PublishedRow | None = None  # from an ablation table; None: those of the main table, if any
    what: str = "its paper"  # its name in footnotes


PapersOf = Callable[["RunRecord"], Sequence[PaperRun]]


def beside_paper(row: Row, run: RunRecord, papers: Sequence[PaperRun]) -> Row:
    """Return the row with the numbers of a paper run with equal settings, else with its differences from the first.

    Args:
        row: the row of `run` and its other seeds.
        papers: the runs to compare with, in this order; if there are none, the main table's numbers are used.
    """
    if not papers:
        return with_paper(row, run)
    found = [differences(run.settings, paper.settings, row.method) for paper in papers]
    same = [paper for paper, differing in zip(papers, found) if not differing]
    for paper in same:
        beside = _with_row(row, run, paper.numbers) if paper.numbers else with_paper(row, run)
        if beside.paper:
            return replace(beside, marks=(*beside.marks, *_backbone(run)))
    return row if same else replace(row, differs=found[0], differs_from=papers[0].what)


def _with_row(row: Row, run: RunRecord, printed: PublishedRow) -> Row:
    """Return the row with the numbers of an ablation table, if it ran on the same benchmark and test videos."""
    if run.tags.get("ctvr.paper") != printed.stream or str(run.settings.get("evaluation.split", "test")) != "test":
        return row
    values = {column: Value(value) for column, value in printed.values.items()}
    source = f"{printed.source}, row “{printed.label}”"
    return replace(row, paper=values, paper_source=source, paper_marks=printed.notes)


def _backbone(run: RunRecord) -> list[str]:
    if run.tags.get("ctvr.protocol") != "cvlm":
        return []
    name, weights = (str(run.settings.get(f"backbone.{each}", "")) for each in ("name", "weights"))
    return [CVLM_BACKBONE.format(name=name, weights=weights)]


def with_differences(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Add a footnote to each row with its differences from its paper; return also notes on differences of all rows."""
    shared: dict[str, tuple[str, str]] = {}
    if len(rows) > 1:
        shared = {
            name: pair for name, pair in rows[0].differs.items() if all(r.differs.get(name) == pair for r in rows)
        }
    noted = []
    for row in rows:
        own = {name: pair for name, pair in row.differs.items() if name not in shared}
        note = difference_note(own, row.differs_from, bool(shared))
        noted.append(replace(row, marks=(*row.marks, note)) if note else row)
    what = {row.differs_from for row in rows}
    named = what.pop() if len(what) == 1 else "its paper"
    return noted, [SHARED.format(what=named, settings=", ".join(format_differences(shared)))] if shared else []


def more_columns(rows: Sequence[Row], printed: Sequence[str]) -> list[Column]:
    """Return the additional columns of a paper's table that the runs measured."""
    wanted = {*printed, *TWINS, *ORACLE, *(key for row in rows for key in row.paper)}
    columns = [
        column for key, (column, _) in PRINTED.items() if key in wanted and any(key in row.values for row in rows)
    ]
    means = {each.key: [row.values[each.key].mean for row in rows if each.key in row.values] for each in columns}
    return [*age_columns(rows), *(replace(each, digits=_digits(each, means[each.key])) for each in columns)]


def requested_columns(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys of the columns that the runs' tags request."""
    return [key for run in runs for key in run.tags.get(EXTRA_COLUMNS, "").split(",") if key]


def _digits(column: Column, means: Sequence[float]) -> int:
    """Return the column's decimals, or more if its smallest value (GMACs of a small backbone) needs them."""
    smallest = min((abs(mean) for mean in means if mean and math.isfinite(mean)), default=1.0)
    return max(column.digits, 1 - math.floor(math.log10(smallest))) if column.digits else 0  # counts are integers


def more_values(means: Mapping[str, Value]) -> dict[str, Value]:
    """Return a row's values for `more_columns`; the cost of a video has no spread if it is equal for all seeds."""
    found = {key: means[metric] for key, (_, metric) in PRINTED.items() if metric in means}
    found |= {key: Value(found[key].mean * by, found[key].std * by) for key, by in SCALE.items() if key in found}
    found |= age_values(means)
    same = {key for key, value in found.items() if value.std <= 1e-9 * abs(value.mean)}
    return {key: replace(value, std=math.nan) if key in same else value for key, value in found.items()}
