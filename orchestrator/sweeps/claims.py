"""Verdicts on the papers' claims from the complete runs of their rows."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.plan import MEAN
from ctvr.orchestrator.sweeps.comparison import compare, experiment_of, is_trained, last_value
from ctvr.orchestrator.tables.claims import (
    FAILED,
    MAIN,
    Cause,
    Claim,
    Result,
    chosen,
    judge,
    metric_of,
    names_in,
    needs_images,
    read,
    read_causes,
)
from ctvr.orchestrator.tables.claims_text import to_text
from ctvr.orchestrator.tables.paper_comparison import ROW
from ctvr.orchestrator.tables.presets import TablePreset
from ctvr.orchestrator.tables.significance import Ranks, q_values, read_ranks
from ctvr.orchestrator.tables.write import write_claims
from ctvr.orchestrator.text_files import read_text
from ctvr.orchestrator.tracking.run_record import RunRecord

RERUN = "ctvr.rerun_of"  # tag of the runs of a table


@dataclass(frozen=True)
class ClaimTable:
    """A table whose rows test claims."""

    name: str  # name of the table's sweep
    preset: TablePreset  # result of `tables.claims.preset_of`
    stream: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of the command
    equal: Mapping[str, str] = field(default_factory=dict)  # row that was not run -> row with equal settings


def claims_of(preset: TablePreset) -> list[Claim]:
    """Return the claims that a table tests."""
    listed = [claim for claim in read()[1] if claim.claim in preset.claims]
    return chosen(preset.claims, needs_images(listed[0])) if listed else []


def judge_table(table: ClaimTable, execution: ExecutionConfig) -> str:
    """Test the claims of a table on its complete runs, write the table of verdicts, and return it as text.

    Args:
        table: the table.
        execution: the runs folder, which may have further tables in which a cause of a verdict is removed.
    """
    tracker = execution.existing_tracker()
    runs = tracker.find_runs(tags={RERUN: table.name, "ctvr.complete": "true"})
    ranks = {run.run_id: found for run in runs if (found := read_ranks(tracker, run.run_id))}
    of_row: dict[str, dict[str, RunRecord]] = {}
    for run in sorted(runs, key=lambda run: run.started):
        of_row.setdefault(run.tags.get(ROW, ""), {})[str(run.settings.get("seed"))] = run
    rows = {row: list(found.values()) for row, found in of_row.items()}
    rows |= {row: rows[same] for row, same in table.equal.items() if same in rows}
    results = [judge_claim(claim, table.preset, rows, ranks) for claim in claims_of(table.preset)]
    folder = execution.runs.resolve() / "tables"
    results = [
        replace(result, q=q, cause=_cause(result, table, folder))
        for result, q in zip(results, q_values([result.improvement.p for result in results]))
    ]
    files = write_claims(results, table.stream, folder / table.name, table.settings)
    return f"{to_text(results, table.stream)}\nwritten: {', '.join(os.path.relpath(file) for file in files)}"


def judge_claim(
    claim: Claim, preset: TablePreset, rows: Mapping[str, Sequence[RunRecord]], ranks: Mapping[str, Ranks]
) -> Result:
    """Test one claim on the complete runs of the two rows that it compares.

    Args:
        claim: the claim.
        preset: the table with its rows.
        rows: complete runs of each row of the table, one per seed.
        ranks: final ranks of each run by run id.
    """
    names = names_in(preset, claim)
    if missing := [name for name in names if not rows.get(name)]:
        return Result(claim, "not run", why=f"no complete run of {missing[0]}")
    row, than = (rows[name] for name in names)
    protocol = row[0].tags.get("ctvr.protocol", "ctvr")
    main, metric = metric_of(MAIN[protocol], protocol), metric_of(claim.column, protocol)
    means = (_mean(row, metric), _mean(than, metric))
    base = _mean(than, main if claim.column == "forgetting" else metric)
    refused = Result(claim, "not judged", means=means, base=base, seeds=min(len(row), len(than)))
    if claim.column == "forgetting" and (still := [name for name in names if cannot_forget(rows[name][0])]):
        return replace(refused, why=f"{still[0]} cannot forget: neither its captions nor the stored videos change")
    if not claim.at_most and is_near_chance(than, ranks, main):
        near = f"{_mean(than, main):.2f}, which is not distinguishable from chance"
        return replace(refused, why=f"R@1 of {names[1]} is {near}")
    compared = {row[0].run_id, than[0].run_id}
    page = {runs[0].run_id: runs for runs in rows.values() if runs and runs[0].run_id not in compared}
    (difference,) = compare(than, [row], ranks, (metric, "max"), list(page.values()))
    return judge(claim, difference, difference.detectable, means, base, min(len(row), len(than)))


def cannot_forget(run: RunRecord) -> bool:
    """Return whether a run's forgetting is 0 by construction, because features of captions and videos do not change.

    This is so if the run does not train, or if its text tower is frozen and the protocol stores the features of videos
    (CTVR, unless the method encodes the gallery again).
    """
    if not is_trained(run):
        return True
    known = experiment_of(run).capabilities
    is_stored = run.tags.get("ctvr.protocol", "ctvr") == "ctvr" and not known.reencodes_gallery
    return is_stored and known.text_is_frozen


def is_near_chance(runs: Sequence[RunRecord], ranks: Mapping[str, Ranks], metric: str) -> bool:
    """Return whether the 95 % interval of a row's R@1, over videos and seeds, contains the R@1 of random scores.

    With one seed the interval is over videos. A row without ranks (accuracies) is not near chance.

    Args:
        runs: runs of the row, one per seed.
        ranks: final ranks of each run by run id.
        metric: metric key of R@1 over all queries, or of the mean over tasks.
    """
    from ctvr.orchestrator.tables.intervals import differences

    if any(run.run_id not in ranks for run in runs):
        return False
    queries = sorted(set.intersection(*(set(ranks[run.run_id].of) for run in runs)))
    videos = [query.rpartition("#")[0] or query for query in queries]
    task = ranks[runs[0].run_id].task if metric == MEAN else {}
    tasks = [task.get(query, 0) for query in queries]
    galleries = Counter(place for place, _ in set(zip(tasks, videos)))
    chance = sum(100 / size for size in galleries.values()) / len(galleries)
    found = np.array([[ranks[run.run_id].of[query].first for query in queries] for run in runs])
    missed, fixed = np.zeros((1, len(queries))), [True, len(runs) == 1 or not is_trained(runs[0])]
    _, r1 = differences([missed, found], 0, videos, tasks, fixed=fixed)
    return r1.low <= chance


def _cause(result: Result, table: ClaimTable, folder: Path) -> str:
    """Return a text on the cause of a failed claim, if a table of `folder` without that cause has another verdict."""
    for cause in read_causes() if result.verdict in FAILED else ():
        if result.claim.claim not in cause.claims:
            continue
        for file in sorted(folder.glob("*/claims.json")):
            other = json.loads(read_text(file))
            if not _lacks(cause, table, other):
                continue
            for each in other["claims"]:
                if each["claim"]["claim"] == result.claim.claim and each["verdict"] not in {result.verdict, "not run"}:
                    parts = [*(f"{name}={value}" for name, value in cause.settings.items()), cause.stream]
                    without = " ".join(filter(None, parts))
                    return f"{cause.cause}. With {without} the verdict is {each['verdict']!r} ({each['shown']})"
    return ""


def _lacks(cause: Cause, table: ClaimTable, other: Mapping[str, Any]) -> bool:
    """Return whether another table's `claims.json` differs from this table only in the settings of a cause."""
    settings = {name: str(value) for name, value in {**table.settings, **cause.settings}.items()}
    return other.get("stream") == (cause.stream or table.stream) and other.get("settings") == settings


def _mean(runs: Sequence[RunRecord], metric: str) -> float:
    return sum(last_value(run, metric) for run in runs) / len(runs)
