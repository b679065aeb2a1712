"""Whether two rows of a table differ: over videos and over seeds, with Holm's correction for many comparisons.

A difference of R@1 would come out otherwise with other test videos and with other seeds, and captions of one video are
no independent draws. Two variances are therefore added:

- of the videos: the seeds are averaged, and the difference's variance is that of a sum over whole videos (clusters);
- of the seeds: of each row the variance of R@1 between its seeds, over their number.

The difference over the root of their sum is compared with Student's t, with Welch and Satterthwaite's degrees of
freedom: three seeds know their spread badly, and the t says so. Resampling three seeds would not. How often equal
methods are called different: docs/statistics.md, `python -m orchestrator.tables.null_simulation`.

Shapes: S seeds, Q queries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.tables.student import quantile, two_sided
from orchestrator.tables.table import LEVEL, Difference, Row

if TYPE_CHECKING:
    from orchestrator.tracking.tracker import Tracker

NOTE = (
    "vs best: difference of R@1 from the row with the best one, its 95 % interval over test videos and seeds (not "
    "corrected), and p, Holm-corrected for all pairs of rows; * p < 0.05. A missing star does not say that two rows "
    "are equal: these videos and seeds cannot tell them apart."
)
ONE_SEED = "Rows of one seed are compared over videos alone: how far they move with another seed is not known."
NO_RANKS = "not compared: the ranks of its queries are not stored"
NO_VIDEOS = "not compared: fewer than two test videos are common to the rows"
NO_TASKS = "not compared: its ranks were stored without the tasks of the queries"
ORDERS = "not compared: runs over several orders of tasks are not independent seeds"
UPPER_BOUND = "not compared: the upper bound sees all data at once"
TRANSDUCTIVE = "not compared: its queries help each other (transductive), the others' do not"


@dataclass(frozen=True)
class Ranks:
    """The final rank of every query of a run, 1 = found first."""

    of: Mapping[str, float]  # query "<video>#<number>" -> rank
    task: Mapping[str, int]  # query -> its task; empty: R@1 is over all queries, not a mean over tasks


def difference(
    ranks_a: Sequence[float] | np.ndarray,
    ranks_b: Sequence[float] | np.ndarray,
    videos: Sequence[object] | np.ndarray | None = None,
    tasks: Sequence[int] | np.ndarray | None = None,
) -> Difference:
    """R@1 of b minus R@1 of a in points, with its 95 % interval and two-sided p.

    A row of one seed borrows the other's spread over seeds; where both have one, videos alone speak.

    Args:
        ranks_a: (Q,) or (S, Q), 1 = found first.
        ranks_b: the same queries in the same order; another number of seeds is fine.
        videos: (Q,) which video each query describes; without it each query counts as a video of its own.
        tasks: (Q,) of each query, where R@1 is the mean over tasks (CVLM).

    Raises:
        ValueError: if the numbers of queries differ, or there are fewer than two videos in a task.
    """
    a, b = (100.0 * (np.atleast_2d(np.asarray(ranks, float)) <= 1) for ranks in (ranks_a, ranks_b))
    if a.shape[-1] != b.shape[-1] or a.size == 0:
        raise ValueError(f"ranks of {a.shape[-1]} and {b.shape[-1]} queries cannot be paired.")
    count = a.shape[-1]
    _, cluster = np.unique(np.arange(count) if videos is None else np.asarray(videos, str), return_inverse=True)
    task = np.zeros(count, int) if tasks is None else np.asarray(tasks)
    parts = [np.flatnonzero(task == index) for index in np.unique(task)]
    d = b.mean(axis=0) - a.mean(axis=0)  # (Q,)
    value = float(np.mean([d[part].mean() for part in parts]))
    of_videos, freedom = _over_videos(d, cluster, parts)
    of_seeds = _over_seeds([np.mean([row[:, part].mean(axis=1) for part in parts], axis=0) for row in (a, b)])
    variance = of_videos + sum(each for each, _ in of_seeds)
    if variance <= 0:
        return Difference(value, value, value, 1.0 if value == 0 else 0.0)
    df = variance**2 / (of_videos**2 / freedom + sum(each**2 / own for each, own in of_seeds))
    error = math.sqrt(variance)
    half = quantile(LEVEL, df) * error
    return Difference(value, value - half, value + half, two_sided(value / error, df))


def _over_videos(d: np.ndarray, cluster: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """Variance of the mean over tasks of the means of `d`, whole videos drawn; and its degrees of freedom."""
    total, freedom = 0.0, 0.0
    for part in parts:
        sums = np.bincount(cluster[part], d[part] - d[part].mean())
        number = len(np.unique(cluster[part]))
        if number < 2:
            raise ValueError("one video in a task: nothing can be said of other videos.")
        total += number / (number - 1) * float((sums**2).sum()) / len(part) ** 2
        freedom += number - 1
    return total / len(parts) ** 2, freedom


def _over_seeds(means: Sequence[np.ndarray]) -> list[tuple[float, float]]:
    """For each row its variance of the mean over seeds and the degrees of freedom; `means` are R@1 (S,) of each row."""
    known = [(float(np.var(each, ddof=1)), len(each) - 1) for each in means if len(each) > 1]
    if len(known) == 1:  # the row of one seed moves as the other one does, as far as anybody knows
        (spread, freedom) = known[0]
        return [(spread * sum(1 / len(each) for each in means), freedom)]
    return [(spread / (freedom + 1), freedom) for spread, freedom in known]


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for as many comparisons; the order is kept."""
    order = sorted(range(len(pvalues)), key=lambda index: pvalues[index])
    corrected, largest = [0.0] * len(pvalues), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(pvalues) - place) * pvalues[index]))
        corrected[index] = largest
    return corrected


def compared(rows: list[Row], ranks: Mapping[str, Ranks], by_task: bool = False) -> list[Row]:
    """Rows with their difference from the best R@1, or with the reason why they were not compared.

    The correction is for all pairs of rows, since the data themselves choose which row is the best.

    Args:
        ranks: run id -> ranks.
        by_task: R@1 is a mean over tasks (CVLM), and the tasks of the queries must be known.
    """
    reasons = [_reason(row, ranks, by_task) for row in rows]
    able = [index for index, reason in enumerate(reasons) if not reason]
    if len(able) < 2:
        return rows
    queries = sorted(set.intersection(*(set(ranks[run].of) for index in able for run in rows[index].runs)))
    found = {index: np.array([[ranks[run].of[q] for q in queries] for run in rows[index].runs]) for index in able}
    videos = [query.rpartition("#")[0] or query for query in queries]
    tasks = [ranks[rows[able[0]].runs[0]].task[query] for query in queries] if by_task else None
    pairs = list(combinations(able, 2))
    try:
        seen = {pair: difference(found[pair[0]], found[pair[1]], videos, tasks) for pair in pairs}
    except ValueError:
        return [row if reasons[i] else replace(row, marks=(*row.marks, NO_VIDEOS)) for i, row in enumerate(rows)]
    corrected = dict(zip(pairs, holm([seen[pair].p for pair in pairs])))
    best = max(able, key=lambda index: rows[index].values["r1"].mean)
    made = []
    for index, row in enumerate(rows):
        if reasons[index]:
            made.append(replace(row, marks=(*row.marks, reasons[index])))
        elif index == best:
            made.append(replace(row, is_reference=True))
        else:
            pair = (min(best, index), max(best, index))
            own = seen[pair] if pair[0] == best else seen[pair].turned()
            made.append(replace(row, vs_best=replace(own, p=corrected[pair])))
    return made


def _reason(row: Row, ranks: Mapping[str, Ranks], by_task: bool) -> str:
    """Why a row is not compared; empty if it is."""
    if row.method == "upper_bound":
        return UPPER_BOUND
    if row.is_transductive:
        return TRANSDUCTIVE
    if row.orders:
        return ORDERS
    if not row.runs or any(run not in ranks for run in row.runs) or not math.isfinite(row.values["r1"].mean):
        return NO_RANKS
    return NO_TASKS if by_task and not all(ranks[run].task for run in row.runs) else ""


def read_ranks(tracker: Tracker, run_id: str) -> Ranks | None:
    """The stored ranks of a run; none where it has none."""
    try:
        stored = json.loads(tracker.download(run_id, "ranks.json").read_text(encoding="utf-8"))
        queries = list(map(str, stored["query ids"]))
        tasks = dict(zip(queries, map(int, stored.get("tasks", []))))
        return Ranks(dict(zip(queries, map(float, stored["ranks"]))), tasks)
    except (FileNotFoundError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        return None
