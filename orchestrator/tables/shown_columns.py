"""Selection of the columns that a table of runs shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tables.paper_comparison import TABLE_NAME, digits_of, more_columns, requested_columns
from ctvr.orchestrator.tables.paper_numbers import paper_numbers, printed_columns
from ctvr.orchestrator.tables.presets import columns_of
from ctvr.orchestrator.tables.table import Column, Row, Table
from ctvr.orchestrator.tables.table_columns import ACCESS_COLUMNS, COLUMNS, OF, OVERALL, PRINTED, TWINS, V2T, V2T_SUM

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

Direction = Literal["t2v", "v2t", "both"]


def protocol_of(run: RunRecord) -> str:
    """Return the name of the protocol of a run's stream, for example `ctvr` or `cvlm`."""
    return run.tags.get("ctvr.protocol", "ctvr")


def columns(rows: Sequence[Row], records: Sequence[RunRecord], direction: Direction) -> tuple[Column, ...]:
    """Return the columns of a table: those of its protocol and direction, and additional columns (`more_columns`)."""
    tables_of = {record.tags.get(TABLE_NAME, "") for record in records}
    name = tables_of.pop() if len(tables_of) == 1 else ""
    printed = (*printed_columns(name), *columns_of(name), *requested_columns(records))
    if own := OF[protocol_of(records[0])].columns:
        return (*own, *more_columns(rows, printed))
    is_cvlm = protocol_of(records[0]) == "cvlm"
    back = V2T[:1] if is_cvlm else V2T
    printed = (*printed, *(ACCESS_COLUMNS if any("videos" in row.access for row in rows) else ()))
    more = [column for column in more_columns(rows, printed) if not is_cvlm or column.key not in TWINS]
    if direction == "v2t":
        summed = (V2T_SUM,) if V2T_SUM.key in printed else ()
        return (
            *back,
            *summed,
            COLUMNS[-1],
            *(column for column in more if column.key in {"gmacs", "tokens"}),
        )
    forward = _cvlm_columns(rows, records) if is_cvlm else COLUMNS
    if direction == "t2v":
        return (*forward, *more)
    sums = () if is_cvlm else (PRINTED["rsum"][0], V2T_SUM)
    return (*forward[:-1], *back, *sums, COLUMNS[-1], *(column for column in more if column not in sums))


def _cvlm_columns(rows: Sequence[Row], records: Sequence[RunRecord]) -> tuple[Column, ...]:
    paper = paper_numbers(records[0].tags.get("ctvr.paper", "")) or {}
    tasks = sorted({key.partition("/")[0] for row in rows for key in row.values if key.startswith("task_")})
    named = dict(zip(tasks, paper.get("tasks", []))) if len(paper.get("tasks", [])) == len(tasks) else {}
    columns = list(OVERALL)
    for task in tasks:
        title = named.get(task, f"T{int(task[5:])}")
        columns.append(Column(f"{task}/r1", f"{title} R@1", "up"))
        if any(f"{task}/fr" in row.values for row in rows):
            columns.append(Column(f"{task}/fr", f"{title} FR", "down"))
    return (*columns, COLUMNS[-1])


def with_metrics(tables: Sequence[Table], names: Sequence[str]) -> list[Table]:
    """Return the tables with a column for each metric of `names` that a run of the table recorded.

    A column has means and standard deviations, without bold cells and comparisons.

    Args:
        names: names of metrics, as runs record them.

    Raises:
        ConfigError: for a name that no run of the tables recorded; the message has similar names.
    """
    known = {name for table in tables for row in table.rows for name in row.recorded}
    for name in names:
        if name not in known:
            near = _closest_metrics(name, sorted(known))
            remedy = f"Use {' or '.join(near)}." if near else "Run them again; they recorded none."
            raise ConfigError("no run of the table has this metric", "--columns", name, remedy)
    return [
        _with_metrics(table, [name for name in names if any(name in r.recorded for r in table.rows)])
        for table in tables
    ]


def _closest_metrics(name: str, known: Sequence[str], most: int = 3) -> list[str]:
    """Return the metrics whose last component is `name`, without case and punctuation, or the most similar ones."""
    plain = re.sub(r"[^a-z0-9/]", "", name.lower())
    if same := [each for each in known if f"/{each}".replace("_", "").endswith(f"/{plain}")]:
        return same[:most]
    of_last = {each: re.sub(r"[^a-z0-9]", "", each.rpartition("/")[2]) for each in known}
    near = get_close_matches(name, known, most) or get_close_matches(plain, of_last.values(), most, 0.0)
    return [each for each in known if each in near or of_last[each] in near][:most]


def _with_metrics(table: Table, names: Sequence[str]) -> Table:
    rows = [
        replace(row, values={**row.values, **{n: row.recorded[n] for n in names if n in row.recorded}})
        for row in table.rows
    ]
    plain = [Column(name, name.removeprefix("stream/")) for name in names]
    more = [
        replace(c, digits=digits_of(c, [row.values[c.key].mean for row in rows if c.key in row.values])) for c in plain
    ]
    keys = [column.key for column in table.columns]  # a narrow screen drops the last columns first
    place = keys.index(COLUMNS[-1].key) + 1 if COLUMNS[-1].key in keys else len(keys)
    return replace(table, columns=(*table.columns[:place], *more, *table.columns[place:]), rows=tuple(rows))
