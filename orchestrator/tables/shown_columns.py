"""Selection of the columns that a table of runs shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ctvr.orchestrator.tables.paper_comparison import TABLE_NAME, more_columns, requested_columns
from ctvr.orchestrator.tables.paper_numbers import paper_numbers, printed_columns
from ctvr.orchestrator.tables.presets import columns_of
from ctvr.orchestrator.tables.table import Column, Row
from ctvr.orchestrator.tables.table_columns import ACCESS_COLUMNS, COLUMNS, OF, OVERALL, PRINTED, TWINS, V2T, V2T_SUM

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord

Direction = Literal["t2v", "v2t", "both"]


def protocol_of(run: RunRecord) -> str:
    """Return the name of the protocol of the stream of a run, for example `ctvr` or `cvlm`."""
    return run.tags.get("ctvr.protocol", "ctvr")


def columns(rows: Sequence[Row], records: Sequence[RunRecord], direction: Direction) -> tuple[Column, ...]:
    """Return the columns of a table: those of its protocol and direction, and additional ones (`more_columns`)."""
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
