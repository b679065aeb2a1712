"""Verdicts on the papers' claims from the complete runs of their rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps.comparison import compare, last_value, observed_mde
from ctvr.orchestrator.tables.claims import Claim, Result, chosen, judge, metric_of, names_in, needs_images, read
from ctvr.orchestrator.tables.claims_text import to_text
from ctvr.orchestrator.tables.paper_comparison import ROW
from ctvr.orchestrator.tables.presets import TablePreset
from ctvr.orchestrator.tables.significance import Ranks, read_ranks
from ctvr.orchestrator.tables.write import write_claims
from ctvr.orchestrator.tracking.run_record import RunRecord

RERUN = "ctvr.rerun_of"  # tag of the runs of a table


def claims_of(preset: TablePreset) -> list[Claim]:
    """Return the claims that a table tests."""
    listed = [claim for claim in read()[1] if claim.claim in preset.claims]
    return chosen(preset.claims, needs_images(listed[0])) if listed else []


def judge_table(
    name: str, preset: TablePreset, stream: str, execution: ExecutionConfig, equal: Mapping[str, str] | None = None
) -> str:
    """Judge the claims of a table by its complete runs, write their table, and return it as text.

    Args:
        name: name of the table's sweep.
        preset: the table, made by `tables.claims.preset_of`.
        stream: name of its stream.
        execution: the runs folder.
        equal: row that was not run -> the row with the same settings, whose runs it uses.
    """
    tracker = execution.existing_tracker()
    runs = tracker.find_runs(tags={RERUN: name, "ctvr.complete": "true"})
    ranks = {run.run_id: found for run in runs if (found := read_ranks(tracker, run.run_id))}
    of_row: dict[str, dict[str, RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.started):
        of_row.setdefault(run.tags.get(ROW, ""), {})[str(run.settings.get("seed"))] = run
    rows = {row: list(found.values()) for row, found in of_row.items()}
    rows |= {row: rows[same] for row, same in (equal or {}).items() if same in rows}
    results = [judge_claim(claim, preset, rows, ranks) for claim in claims_of(preset)]
    files = write_claims(results, stream, execution.runs.resolve() / "tables" / name)
    return f"{to_text(results, stream)}\nwritten: {', '.join(os.path.relpath(file) for file in files)}"


def judge_claim(
    claim: Claim, preset: TablePreset, rows: Mapping[str, Sequence[RunRecord]], ranks: Mapping[str, Ranks]
) -> Result:
    """Judge one claim by the complete runs of its two rows.

    Args:
        claim: the claim.
        preset: the table with its rows.
        rows: row of the table -> its complete runs, one a seed.
        ranks: run id -> final ranks.
    """
    names = names_in(preset, claim)
    if missing := [name for name in names if not rows.get(name)]:
        return Result(claim, "not run", why=f"no complete run of {missing[0]}")
    row, than = (rows[name] for name in names)
    metric = metric_of(claim.column, row[0].tags.get("ctvr.protocol", "ctvr"))
    means = (_mean(row, metric), _mean(than, metric))
    (difference,) = compare(than, [row], ranks, (metric, "max"))
    return judge(claim, difference, observed_mde(difference), means, min(len(row), len(than)))


def _mean(runs: Sequence[RunRecord], metric: str) -> float:
    return sum(last_value(run, metric) for run in runs) / len(runs)
