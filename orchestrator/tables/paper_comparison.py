"""Comparison of rows with papers: the published numbers of equal settings, or the settings that differ.

A row is compared with paper runs in this order: the printed row that it reproduces (tags `ctvr.row` and
`ctvr.table_name`), its method's main table, every other printed row of its method. The first paper run whose settings
equal those of the row gives the numbers. Without such a run, a footnote lists the differences from the first paper run.
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

EXTRA_COLUMNS = "ctvr.columns"  # tag: comma-separated keys of table_columns.PRINTED, columns that the runs request
ROW, TABLE_NAME = "ctvr.row", "ctvr.table_name"  # tags: name of a row in its table, name of a table preset
SHARED = "Every row differs from {what} in: {settings}."


@dataclass(frozen=True)
class PaperRun:
    """A run that a paper reports: its settings and its printed numbers."""

    settings: Settings  # all settings, resolved
    numbers: PublishedRow | None = None  # row of an ablation table; None: the main table has the numbers, if any
    what: str = "its paper"  # name of the paper run in footnotes


PapersOf = Callable[["RunRecord"], Sequence[PaperRun]]


def beside_paper(row: Row, run: RunRecord, papers: Sequence[PaperRun]) -> Row:
    """Return the row with the numbers of a paper run of equal settings, or with its differences from the first run.

    Args:
        row: the row that averages `run` and its other seeds.
        papers: the paper runs to compare with, in this order. If empty, the numbers of the main table are used.
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
    """Return the row with the numbers of an ablation table, if it ran on the benchmark and test videos of the table."""
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
    """Return the rows with footnotes on their differences from papers, and a note on the differences that all share."""
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
    """Return the additional columns for which a row has a value.

    Candidates are the columns in `printed`, the columns that a paper prints, and always the columns of twins, of the
    oracle and of index age.
    """
    wanted = {*printed, *TWINS, *ORACLE, *(key for row in rows for key in row.paper)}
    columns = [
        column for key, (column, _) in PRINTED.items() if key in wanted and any(key in row.values for row in rows)
    ]
    means = {each.key: [row.values[each.key].mean for row in rows if each.key in row.values] for each in columns}
    return [*age_columns(rows), *(replace(each, digits=digits_of(each, means[each.key])) for each in columns)]


def requested_columns(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys of the additional columns in the tags `ctvr.columns` of the runs."""
    return [key for run in runs for key in run.tags.get(EXTRA_COLUMNS, "").split(",") if key]


def digits_of(column: Column, means: Sequence[float]) -> int:
    """Return the number of decimals of a column. A small value, such as GMACs of a small backbone, increases it."""
    smallest = min((abs(mean) for mean in means if mean and math.isfinite(mean)), default=1.0)
    return max(column.digits, 1 - math.floor(math.log10(smallest))) if column.digits else 0  # counts are integers


def more_values(means: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of a row for `more_columns`, from metric -> mean over seeds.

    A value that is equal for all seeds, such as the cost of a video, is shown without a standard deviation.
    """
    found = {key: means[metric] for key, (_, metric) in PRINTED.items() if metric in means}
    found |= {key: Value(found[key].mean * by, found[key].std * by) for key, by in SCALE.items() if key in found}
    found |= age_values(means)
    same = {key for key, value in found.items() if value.std <= 1e-9 * abs(value.mean)}
    return {key: replace(value, std=math.nan) if key in same else value for key, value in found.items()}
