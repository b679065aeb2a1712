"""Comparison of the rows of a table with the best row: selection of the comparable rows, runs and queries.

intervals.py computes the differences and their intervals.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ctvr.orchestrator.streams.query_rank import Rank, read_all
from ctvr.orchestrator.tables.table import Difference, Row
from ctvr.orchestrator.text_files import read_text

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord
    from ctvr.orchestrator.tracking.tracker import Tracker

log = logging.getLogger(__name__)

NOTE = (
    "R@1 vs best: R@1 minus the R@1 of the best row in the same block, in points, with a simultaneous 95 % interval "
    "over test videos and seeds (or task orders) and a p-value. Interval and p-value account for all comparisons of "
    "the table and for the choice of the best row. * p < 0.05, that is, the interval excludes 0. A missing star does "
    "not show that two rows are equal, only that these videos and seeds do not distinguish them."
)
ONE_SEED = "not compared: one seed, and the variance over seeds cannot be estimated because no row has several seeds"
LEAST_ORDERS = 4  # with two orders, 10 % of tests of equal rows are significant; with three, 1 to 9 %
FEW_ORDERS = f"not compared: estimating the variance over task orders requires at least {LEAST_ORDERS} orders"
OTHER_ORDERS = "not compared: its task orders differ from those of the other row"
NO_RANKS = "not compared: the ranks of its queries are not stored"
NO_VIDEOS = "not compared: the rows have fewer than two test videos in common"
ALONE = "not compared: no other row of its block can be compared"
NO_TASKS = "not compared: its ranks were stored without the tasks of the queries"
OLDER = "which counted a tie in R@k as a miss and not by its expected value"
TIES_MISSED = f"not compared: recorded by an older version of ctvr, {OLDER}"
UPPER_BOUND = "not compared: joint training has access to all tasks at once"
TRANSDUCTIVE = "not compared: transductive scoring, in which the result of a query depends on other test queries"


@dataclass(frozen=True)
class Ranks:
    """The final rank of every query of a run. `Rank.read` converts the mean ranks of older versions."""

    of: Mapping[str, Rank]  # query "<video>#<number>" -> rank
    task: Mapping[str, int]  # query -> its task; empty if an older version did not store it
    # percent of old videos that are re-encoded ("0": as stored) -> query -> rank; empty unless measured
    reencoded: Mapping[str, Mapping[str, Rank]] = field(default_factory=dict)
    is_older: bool = False  # True: the run stored mean ranks only and counted a tie as a miss in R@k

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", read_all(self.of))
        object.__setattr__(self, "reencoded", {share: read_all(of) for share, of in self.reencoded.items()})

    @cached_property
    def counts_ties_as_misses(self) -> bool:
        """Return whether the run has ties and its recorded R@k counts them as misses, unlike the present rule."""
        return self.is_older and any(rank.equal for of in (self.of, *self.reencoded.values()) for rank in of.values())


def compare_rows(rows: list[Row], ranks: Mapping[str, Ranks], by_task: bool = False) -> list[Row]:
    """Return the rows with their difference from the best R@1 of their block, or a footnote on why there is none.

    Args:
        ranks: run id -> ranks.
        by_task: whether R@1 is a mean over tasks (CVLM), for which the ranks must contain the tasks of the queries.
    """
    reasons = [_reason(row, ranks, by_task) for row in rows]
    able = [index for index, reason in enumerate(reasons) if not reason]
    if len(able) < 2:
        return rows
    listed, best = [rows[index] for index in able], _best_of_blocks(rows, able)
    for index in able:
        reasons[index] = _unlike(rows[index], rows[best[rows[index].access]], listed)
    seen: dict[int, Difference] = {}
    for access, first in best.items():
        block = [index for index in able if rows[index].access == access and not reasons[index]]
        if len(block) < 2:
            reasons = [ALONE if index in block else reason for index, reason in enumerate(reasons)]
            continue
        like = [index for index in able if not _unlike(rows[index], rows[first], listed)]  # rows of all blocks
        try:
            found = _against(first, like, rows, ranks, by_task)
            seen |= {index: found[index] for index in block if index != first}
        except ValueError:
            reasons = [NO_VIDEOS if index in block else reason for index, reason in enumerate(reasons)]
    made = []
    for index, row in enumerate(rows):
        if reasons[index]:
            made.append(replace(row, marks=(*row.marks, reasons[index])))
        else:
            made.append(replace(row, is_reference=index not in seen, vs_best=seen.get(index)))
    return made


def all_pairs(
    rows: Sequence[Row], ranks: Mapping[str, Ranks], by_task: bool = False
) -> tuple[list[tuple[Row, Row, Difference]], dict[str, str]]:
    """Return (row, later row, R@1 of the first minus R@1 of the second), and label -> reason of each omitted row.

    Intervals and p are simultaneous for all pairs (Tukey). Rows of all blocks are compared, including joint training.

    Args:
        ranks, by_task: see `compare_rows`.
    """
    reasons = {row.label: reason for row in rows if (reason := _reason(replace(row, access=""), ranks, by_task))}
    able = [row for row in rows if row.label not in reasons]
    reasons |= {row.label: reason for row in able if (reason := _unlike(row, able[0], able))}
    able = [row for row in able if row.label not in reasons]
    every, found = range(len(able)), []
    for second in every[1:]:
        try:
            seen = _against(second, every, able, ranks, by_task)
        except ValueError:
            return [], {**reasons, **{row.label: NO_VIDEOS for row in able}}
        found += [(able[first], able[second], seen[first]) for first in every[:second]]
    return found, reasons


def _best_of_blocks(rows: Sequence[Row], able: Sequence[int]) -> dict[str, int]:
    """Map each kind of access to the index of its row with the best R@1."""
    found: dict[str, int] = {}
    for index in sorted(able, key=lambda index: -rows[index].values["r1"].mean):
        found.setdefault(rows[index].access, index)
    return found


def _against(
    best: int, able: Sequence[int], rows: Sequence[Row], ranks: Mapping[str, Ranks], by_task: bool
) -> dict[int, Difference]:
    """Return index -> difference of row `index` from row `best`, simultaneous for all pairs of the rows `able`."""
    queries = sorted(set.intersection(*(set(ranks[run].of) for index in able for run in rows[index].runs)))
    found = [np.array([[ranks[run].of[q].first for q in queries] for run in rows[index].runs]) for index in able]
    videos = [query.rpartition("#")[0] or query for query in queries]
    tasks = [ranks[rows[best].runs[0]].task[query] for query in queries] if by_task else None
    orders = [[_order(seed) for seed in rows[index].seeds] for index in able] if rows[best].orders else None
    fixed = [_is_fixed(rows[index]) for index in able]
    from ctvr.orchestrator.tables.intervals import differences  # SciPy takes a second to import

    seen = dict(zip(able, differences(found, able.index(best), videos, tasks, orders, fixed)))
    del seen[best]
    return seen


def _order(seed: str) -> str:
    """Return the task order in the name of a seed (`2` for `1@2`), or "" if the row has only one order."""
    return seed.partition("@")[2]


def _is_fixed(row: Row) -> bool:
    """Return whether a row has no trained parameters, so that all seeds give equal results."""
    return row.values["params_m"].mean == 0 if "params_m" in row.values else False


def _unlike(row: Row, best: Row, able: Sequence[Row]) -> str:
    """Return why a row cannot be compared with row `best` by task orders or seeds, or "" if it can."""
    orders = set(map(_order, best.seeds))
    if set(map(_order, row.seeds)) != orders:
        return OTHER_ORDERS
    if best.orders:
        return FEW_ORDERS if len(orders) < LEAST_ORDERS else ""
    if _is_fixed(row) and _is_fixed(best):
        return ""
    trained = [each for each in able if not _is_fixed(each) and not each.orders]
    return "" if any(len(each.seeds) > 1 for each in trained) else ONE_SEED


def _reason(row: Row, ranks: Mapping[str, Ranks], by_task: bool) -> str:
    """Return why a row cannot be compared with any row, or "" if it can."""
    if row.access == "joint":
        return UPPER_BOUND
    if row.is_transductive:
        return TRANSDUCTIVE
    if not row.runs or any(run not in ranks for run in row.runs) or not math.isfinite(row.values["r1"].mean):
        return NO_RANKS
    if any(ranks[run].counts_ties_as_misses for run in row.runs):
        return TIES_MISSED
    return NO_TASKS if by_task and not all(ranks[run].task for run in row.runs) else ""


def one_rule_of_ties(runs: Sequence[RunRecord], ranks: Mapping[str, Ranks]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs that treat ties in R@k alike, and a note on runs that count a tie as a miss.

    Such runs are left out if another run counts a tie by its expected value. Otherwise they are kept.
    """
    older = [run for run in runs if run.run_id in ranks and ranks[run.run_id].counts_ties_as_misses]
    others = [run for run in runs if run not in older]
    if not older:
        return list(runs), []
    if any(run.run_id in ranks and not ranks[run.run_id].is_older for run in others):
        count = f"{len(older)} run{'s' * (len(older) > 1)}"
        return others, [f"Left out: {count} of an older version of ctvr, {OLDER}. Run them again."]
    return list(runs), [
        f"R@k: the runs with ties are of an older version of ctvr, {OLDER}. Run them again to compare them."
    ]


def read_ranks(tracker: Tracker, run_id: str) -> Ranks | None:
    """Return the stored ranks of a run, or None if they are missing or damaged. Log a warning if they are damaged."""
    try:
        stored = json.loads(read_text(tracker.download(run_id, "ranks.json")))
        queries = list(map(str, stored["query ids"]))
        tasks = dict(zip(queries, map(int, stored.get("tasks", []))))
        of = dict(zip(queries, _ranks(stored)))
        aged = {str(share): dict(zip(queries, _ranks(part))) for share, part in stored.get("reencoded", {}).items()}
        return Ranks(of, tasks, aged, is_older="better" not in stored)
    except (FileNotFoundError, KeyError):  # a run without ranks
        return None
    except (TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        log.warning("run %s: its ranks.json is damaged (%s), so it is not compared", run_id[:8], error)
        return None


def gallery_sizes(ranks: Sequence[Ranks]) -> tuple[int, ...]:
    """Return the number of searched videos of each task, or () if it is unknown or differs between runs."""
    found = set()
    for each in ranks:
        tasks = {query.rpartition("#")[0]: task for query, task in each.task.items()}
        found.add(tuple(Counter(tasks.values())[task] for task in range(max(tasks.values(), default=-1) + 1)))
    return found.pop() if len(found) == 1 else ()


def rank_curve(ranks: Sequence[Ranks]) -> tuple[tuple[int, float], ...]:
    """Return (k, mean R@k over runs in percent) for selected k up to the largest rank, or () without ranks.

    A tie is weighted by the chance that the video is among the first k. All queries have equal weight, also where R@k
    of the table is a mean over tasks (CVLM).
    """
    counts = [
        np.array([(rank.better, rank.equal) for rank in each.of.values()], float).reshape(-1, 2) for each in ranks
    ]
    if not counts or any(len(each) == 0 for each in counts):
        return ()
    largest = max(int((1 + each.sum(axis=1)).max()) for each in counts)
    listed = [times * 10**power for power in range(len(str(largest))) for times in (1, 2, 3, 5, 7)]
    shares = {
        k: np.mean([np.clip((k - better) / (1 + equal), 0, 1).mean() for better, equal in (each.T for each in counts)])
        for k in [*(k for k in listed if k < largest), largest]
    }
    return tuple((k, 100 * float(share)) for k, share in shares.items())


def _ranks(stored: Mapping[str, Any] | Sequence[float]) -> list[Rank]:
    """Return the ranks in the content of a file. Older versions stored mean ranks instead of counts."""
    if isinstance(stored, Mapping) and "better" in stored:
        return [Rank(*map(int, counts)) for counts in zip(*(stored[name] for name in Rank._fields), strict=True)]
    return [Rank.read(float(mean)) for mean in (stored["ranks"] if isinstance(stored, Mapping) else stored)]


def q_values(p: Sequence[float]) -> list[float]:
    """Return the q-value of each test: the smallest false discovery rate at which its null hypothesis is rejected.

    The procedure is that of Benjamini and Hochberg (1995). A test whose p is NaN gets NaN and is not counted.
    """
    tested = np.asarray(p, float)
    order = np.argsort(tested)[: int(np.isfinite(tested).sum())]  # NaN is last
    q = tested.copy()
    q[order] = np.minimum.accumulate((tested[order] * len(order) / np.arange(1, len(order) + 1))[::-1])[::-1]
    return q.tolist()
