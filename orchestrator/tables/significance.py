"""Whether two rows of a table differ: paired bootstrap over queries, Holm's correction for many comparisons."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.tables.table import Row

if TYPE_CHECKING:
    from orchestrator.tracking.tracker import Tracker

LEVEL = 0.05
TIED = "R@1 is not distinguishable from the best (paired bootstrap over queries, Holm-corrected p >= 0.05)"


@dataclass(frozen=True)
class Ranks:
    """The final rank of every query of a run, 1 = found first."""

    of: Mapping[str, float]  # query -> rank
    task: Mapping[str, int]  # query -> its task; empty: R@1 is over all queries, not a mean over tasks


def paired_bootstrap(
    ranks_a: Sequence[float] | np.ndarray,
    ranks_b: Sequence[float] | np.ndarray,
    seed: int = 0,
    samples: int = 10_000,
    tasks: Sequence[int] | np.ndarray | None = None,
) -> float:
    """Two-sided p that the R@1 of two methods differs, over resampled queries.

    The queries are drawn with replacement; the p is the share of resampled differences that lie further from the
    observed one than the observed one lies from zero. It speaks of the queries; seeds are averaged before.

    Args:
        ranks_a: (Q,) or (S, Q), 1 = found first; the same queries in the same order as `ranks_b`.
        ranks_b: the other method's.
        seed: of the resampling.
        samples: resampled differences.
        tasks: (Q,) of each query, where R@1 is the mean over tasks (CVLM): each task's queries are drawn apart.

    Raises:
        ValueError: if the numbers of queries differ or are zero.
    """
    a, b = (np.atleast_2d(np.asarray(ranks, float)) for ranks in (ranks_a, ranks_b))
    if a.shape[-1] != b.shape[-1] or a.size == 0:
        raise ValueError(f"ranks of {a.shape[-1]} and {b.shape[-1]} queries cannot be paired.")
    difference = (a <= 1).mean(axis=0) - (b <= 1).mean(axis=0)  # (Q,)
    groups = np.zeros(len(difference)) if tasks is None else np.asarray(tasks)
    parts = [difference[groups == group] for group in np.unique(groups)]
    observed = float(np.mean([part.mean() for part in parts]))
    rng = np.random.default_rng(seed)
    drawn = np.mean([_resampled(part, rng, samples) for part in parts], axis=0)  # (samples,)
    further = int((np.abs(drawn - observed) >= abs(observed) - 1e-12).sum())
    return (further + 1) / (samples + 1)


def _resampled(difference: np.ndarray, rng: np.random.Generator, samples: int) -> np.ndarray:
    """Means (samples,) of queries drawn with replacement from `difference` (Q,)."""
    steps, counts = np.unique(difference, return_counts=True)  # few: resampling counts equals resampling queries
    total = len(difference)
    means: np.ndarray = rng.multinomial(total, counts / total, size=samples) @ steps / total
    return means


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for as many comparisons; the order is kept."""
    order = sorted(range(len(pvalues)), key=lambda index: pvalues[index])
    corrected, largest = [0.0] * len(pvalues), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(pvalues) - place) * pvalues[index]))
        corrected[index] = largest
    return corrected


def compared(rows: list[Row], ranks: Mapping[str, Ranks], by_task: bool = False) -> list[Row]:
    """Rows with p against the best R@1 and a mark where they cannot be told from it.

    Args:
        ranks: run id -> ranks; a row without them is not compared.
        by_task: R@1 is a mean over tasks (CVLM), and the tasks of the queries must be known.
    """
    able = [row for row in rows if row.method != "upper_bound" and row.runs and all(run in ranks for run in row.runs)]
    able = [row for row in able if math.isfinite(row.values["r1"].mean)]
    if by_task:
        able = [row for row in able if all(ranks[run].task for run in row.runs)]
    if len(able) < 2:
        return rows
    best = max(able, key=lambda row: row.values["r1"].mean)
    queries = sorted(set.intersection(*(set(ranks[run].of) for row in able for run in row.runs)))
    if not queries:
        return rows
    of = {id(row): np.array([[ranks[run].of[query] for query in queries] for run in row.runs]) for row in able}
    tasks = [ranks[best.runs[0]].task[query] for query in queries] if by_task else None
    others = [row for row in able if row is not best]
    pvalues = holm([paired_bootstrap(of[id(best)], of[id(row)], tasks=tasks) for row in others])
    p = dict(zip(map(id, others), pvalues))
    return [
        replace(row, p_best=p[id(row)], marks=row.marks + ((TIED,) if p[id(row)] >= LEVEL else ()))
        if id(row) in p
        else row
        for row in rows
    ]


def read_ranks(tracker: Tracker, run_id: str) -> Ranks | None:
    """The stored ranks of a run; none where it has none."""
    try:
        stored = json.loads(tracker.download(run_id, "ranks.json").read_text(encoding="utf-8"))
        queries = list(map(str, stored["query ids"]))
        tasks = dict(zip(queries, map(int, stored.get("tasks", []))))
        return Ranks(dict(zip(queries, map(float, stored["ranks"]))), tasks)
    except (FileNotFoundError, KeyError, TypeError, ValueError, AttributeError):
        return None
