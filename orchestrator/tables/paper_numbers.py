"""Published numbers of the papers, in two kinds of JSON files.

`paper_numbers/STREAM.json` contains the main table of a benchmark, with one entry for each method (`paper_numbers`).

`paper_numbers/tables/NAME.json` contains one ablation table, with each row as it is printed (`published_rows`):

    {"source": "..., Table 2", "seeds": 3 (null: not printed),
     "notes": ["what holds for the whole table, and where it contradicts itself"],
     "streams": {"msrvtt-10": {"columns": ["r1", "bwf"], "recommended": {"preset": "paper"}}, ...},
     "rows": [{"label": "w/o FFA", "row": "framefusion_moe:no-ffa",
               "values": {"msrvtt-10": [17.59, 0.13], ...}, "notes": ["of this row"]},
              {"label": "DiffRate", "row": null, "values": {...}}]}

`row` is the row of the table preset NAME (`table_presets/NAME.json`) that reproduces the printed row. It gives method,
presets and settings. `row` is null if the method is not implemented here. `recommended` are the settings of the stream
in the paper, in the form of `Stream.settings`, if they differ from the defaults. `columns` are keys of columns (`r1`,
`rsum`, `gmacs`), with the prefix `v2t/` for video to text. A value is null if it is not printed, or not legible in the
available text. Numbers are copied as printed, even if they cannot be right. Notes mention such numbers.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.tables.presets import load_preset
from ctvr.orchestrator.tables.table import Row, Value

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

FOLDER = Path(__file__).parent / "paper_numbers"
BACKBONE = "backbone {name}, the paper has ViT-B/32"


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One printed row of an ablation table, on one stream."""

    table: str
    label: str  # as printed
    stream: str
    row: str  # row of the table preset of the same name; empty: not implemented here
    method: str  # method or configuration; empty: not implemented here
    presets: tuple[str, ...]  # presets on top of the stream's recommended one
    settings: Settings  # settings on top of the presets
    recommended: Settings  # `Stream.settings` of the paper, if they differ from the defaults
    values: dict[str, float]  # column -> printed number
    source: str
    seeds: int | None
    notes: tuple[str, ...] = field(default=())

    @property
    def mark(self) -> str:
        """Return the footnote of a row whose method is not implemented here. Otherwise return ""."""
        return "" if self.method else "not implemented here"


def published_tables() -> list[str]:
    """Return the names of the ablation tables with known numbers, which are also names of table presets."""
    return sorted(path.stem for path in (FOLDER / "tables").glob("*.json"))


def published_rows(stream: str, table: str = "", method: str = "") -> list[PublishedRow]:
    """Return the rows of ablation tables that were measured on a stream, in the papers' order.

    Args:
        stream: a published benchmark (`Stream.paper`): `msrvtt-10`, `cvlm`, `msrvtt`.
        table: name of the table to include. If empty, all tables are included.
        method: method or configuration to include. If empty, all methods are included.
    """
    tables = [name for name in published_tables() if table in {"", name}]
    rows = [row for name in tables for row in _table(name) if row.stream == stream]
    return [row for row in rows if not method or row.method == method]


def printed_columns(table: str) -> tuple[str, ...]:
    """Return the keys of the columns that an ablation table prints for any stream, or () without known numbers."""
    found = [row.values for row in _table(table)] if table in published_tables() else []
    return tuple(dict.fromkeys(column for values in found for column in values))


def row_of(table: str, row: str, stream: str) -> PublishedRow | None:
    """Return the printed row for row `row` of a table preset, or None if the paper does not print it.

    If the row is not printed for `stream`, return the row for the first benchmark that has it.
    """
    found = [each for each in _table(table) if each.row == row] if table in published_tables() else []
    return next((each for each in found if each.stream == stream), found[0] if found else None)


def benchmarks(table: str) -> tuple[str, ...]:
    """Return the streams for which a printed table has columns, or () for a table without known numbers."""
    return tuple(dict.fromkeys(row.stream for row in _table(table))) if table in published_tables() else ()


def not_implemented(table: str) -> tuple[str, ...]:
    """Return the labels of the printed rows that no method here implements, or () for a table without known numbers."""
    found = [row.label for row in _table(table) if not row.method] if table in published_tables() else []
    return tuple(dict.fromkeys(found))


@lru_cache
def _table(name: str) -> tuple[PublishedRow, ...]:
    data = json.loads((FOLDER / "tables" / f"{name}.json").read_text(encoding="utf-8"))
    preset = load_preset(name)
    runs = {row.name: row for row in preset.rows}
    found = []
    for stream, head in data["streams"].items():
        for entry in data["rows"]:
            if stream not in entry["values"]:
                continue
            run = runs[entry["row"]] if entry["row"] else None
            pairs = zip(head["columns"], entry["values"][stream], strict=True)
            found.append(
                PublishedRow(
                    table=name,
                    label=entry["label"],
                    stream=stream,
                    row=entry["row"] or "",
                    method=run.method if run else "",
                    presets=run.presets if run else (),
                    settings=preset.settings_of(run, [stream]) if run else {},
                    recommended=head.get("recommended", {}),
                    values={column: value for column, value in pairs if value is not None},
                    source=data["source"],
                    seeds=data.get("seeds"),
                    notes=(*data.get("notes", ()), *entry.get("notes", ())),
                )
            )
    return tuple(found)


def paper_numbers(name: str) -> dict[str, Any] | None:
    """Return the content of the main table of a benchmark (`msrvtt-10`, ..., `cvlm`), or None if there is none."""
    path = FOLDER / f"{name}.json"
    if not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def with_paper(row: Row, run: RunRecord) -> Row:
    """Return the row with the numbers of the main table, if the run used the test videos of a published benchmark."""
    paper = paper_numbers(run.tags.get("ctvr.paper", "")) or {}
    entry = paper.get("methods", {}).get(row.method)
    if entry is None or str(run.settings.get("evaluation.split", "test")) != "test":
        return row
    values = {key: _published(value) for key, value in entry["values"].items()}
    backbone = str(run.settings.get("backbone.name", "ViT-B-32"))
    marks = row.marks
    if paper["protocol"] == "ctvr" and not backbone.startswith("ViT-B-32"):
        marks += (BACKBONE.format(name=backbone),)
    return replace(
        row, marks=marks, paper=values, paper_source=entry["source"], paper_marks=tuple(entry.get("notes", ()))
    )


def _published(value: float | list[float | None]) -> Value:
    mean, std = value if isinstance(value, list) else (value, None)
    return Value(math.nan if mean is None else mean, math.nan if std is None else std)


def place(method: str) -> tuple[int, int]:
    """Return a sort key for methods: the order of the main tables, then other methods, then the upper bound."""
    order = [*(paper_numbers("msrvtt-10") or {}).get("methods", {}), *(paper_numbers("cvlm") or {}).get("methods", {})]
    if method == "upper_bound":
        return 2, 0
    return (0, order.index(method)) if method in order else (1, 0)
