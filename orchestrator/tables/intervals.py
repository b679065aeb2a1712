"""Confidence intervals and p values of differences between rows, over test videos, seeds and task orders.

A difference of R@1 varies with the test videos (captions of one video are one sample) and with the replicates: the
seeds of each row, or, for rows over several orders of tasks, the orders. Seeds are averaged within an order and rows
are paired by order. Videos and replicates are crossed, so the variance is

    V = V_videos + U,  U = max(0, V_replicates - V_both)

where V_both is the variance of the interaction of videos and replicates, which V_videos and V_replicates both contain.
The degrees of freedom follow Satterthwaite (1946): df = 2 V^2 / (Var V_videos + Var U), where Var U is the variance of
U if V_replicates has a scaled chi-square distribution.

V_replicates is a moderated variance (Smyth 2004). It is a weighted mean of two variances: the row's own, and the
mean over all rows of the table or page. The weights are the degrees of freedom of the row's variance, and `PRIOR`.
`PRIOR` is reduced if the row's own variance is unusually large (Phipson et al. 2016).

p and interval use the same distribution. It is Student's t for two rows. For the rows of a table, whose best row
depends on the data, it is Tukey's studentized range in the form of Games and Howell. docs/statistics.md lists
measured error rates, which `make null-simulation` measures again.

Shapes: S seeds, O orders, R replicates (S or O), Q queries, K rows, J variances that are estimated independently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.optimize takes 0.2 s of CPU time to import

from ctvr.orchestrator.tables.multiple_comparisons import Family
from ctvr.orchestrator.tables.table import Difference

PRIOR = 4.0  # prior degrees of freedom, which weight the mean variance of all rows
OUTLIER_PROBABILITY = 0.1  # a variance that is less probable than this, given the other rows, is moderated less


@dataclass(frozen=True)
class Spread:
    """J variances of R@1 between replicates for each of K rows, and their weights in the difference of each row."""

    seen: np.ndarray  # (K, J, ...) independent estimates
    both: np.ndarray  # (K, J, ...) the part of each that is the interaction of replicates and videos
    df: np.ndarray  # (J,)
    moderated: np.ndarray  # (K, J, ...) the variances that enter the degrees of freedom
    weights: np.ndarray  # (K, J, ...)

    def of(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the variance over replicates of the difference of a row, its part from interaction, and its df."""
        weights = self.weights[row]
        df = self.df.reshape(-1, *[1] * (weights.ndim - 1))
        seen = np.asarray((weights * self.seen[row]).sum(axis=0))
        spread = (weights**2 / df * self.moderated[row] ** 2).sum(axis=0)
        few = np.divide(seen**2, spread, out=np.ones_like(seen), where=spread > 0)
        most = np.maximum((df * (weights > 0)).sum(axis=0), 1.0)
        return seen, (weights * self.both[row]).sum(axis=0), np.minimum(few, most)


def differences(
    rows: Sequence[Sequence[float] | np.ndarray],
    best: int,
    videos: Sequence[object] | np.ndarray | None = None,
    tasks: Sequence[int] | np.ndarray | None = None,
    orders: Sequence[Sequence[object] | np.ndarray] | None = None,
    fixed: Sequence[bool] | None = None,
    family: Family | None = None,
) -> list[Difference]:
    """Return R@1 of each row minus that of row `best` in points, with simultaneous 95 % intervals and two-sided p.

    A trained row with one seed uses the variance over seeds of the other rows. If all trained rows have one seed, no
    interval is known.

    Args:
        rows: chances (Q,) or (S, Q) of each row, in [0, 1], that a query finds its video first (`Rank.first`): the
            same queries in the same order.
        videos: (Q,) the video that each query describes; default: a different video for each query.
        tasks: (Q,) the task of each query, if R@1 is the mean over tasks (CVLM).
        orders: the task order of each run of each row; rows are paired by order. If None, all runs have one order.
        fixed: for each row, whether it lacks trained parameters, so that all seeds give the same result.
        family: the comparisons for which p and interval are simultaneous; default: all rows with the best row.

    Raises:
        ValueError: if the numbers of queries or the orders differ, a task has fewer than two videos, or a chance is
            not within 0 and 1.
    """
    hits = [_points(chances) for chances in rows]
    sizes = sorted({each.shape[-1] for each in hits})
    if len(sizes) > 1 or not hits[0].size:
        raise ValueError(f"chances of {' and '.join(map(str, sizes))} queries cannot be paired.")
    cluster, parts = _groups(sizes[0], videos, tasks)
    counts = [0 if is_fixed else len(each) for each, is_fixed in zip(hits, fixed or [False] * len(rows))]
    if orders is None:
        spread = of_seeds([(n, *_over_replicates(each, cluster, parts)) for n, each in zip(counts, hits)], best)
    else:
        hits = _by_order(hits, orders)
        spread = _of_orders(np.array(hits), best, cluster, parts)
    family, found = family or Family(len(rows)), []
    for row, own in enumerate(hits):
        d = own.mean(axis=0) - hits[best].mean(axis=0)  # (Q,)
        value, of_videos = float(np.mean([d[part].mean() for part in parts])), _over_videos(d[None], cluster, parts)
        if spread or not (counts[row] or counts[best]):
            found.append(family.judge(value, *of_videos, *(spread.of(row) if spread else ())))
        else:
            found.append(_unknown(value))
    return found


def compare_over_seeds(rows: Sequence[Sequence[float] | np.ndarray], family: Family | None = None) -> list[Difference]:
    """Return the mean of each row minus the mean of the first row, for a metric with one value per seed.

    The first row counts as selected in advance, unless `family` is given. Intervals are over seeds only, for fixed test
    items. If the values of all seeds are equal, no interval is known.
    """
    parts = [(len(row), float(np.var(row, ddof=1)) if len(row) > 1 else 0.0, 0.0) for row in rows]
    spread, family = of_seeds(parts, 0), family or Family(len(rows), is_chosen=False)
    found = []
    for index, row in enumerate(rows):
        value = float(np.mean(row) - np.mean(rows[0]))
        is_known = spread is not None and spread.of(index)[0] > 0 and math.isfinite(value)
        found.append(family.judge(value, 0.0, 1, *spread.of(index)) if is_known and spread else _unknown(value))
    return found


def paired_changes(
    rows: Sequence[tuple[np.ndarray, np.ndarray]], videos: Sequence[object] | np.ndarray
) -> list[Difference]:
    """Return R@1 after minus R@1 before of each row, in points, for two galleries searched with the same captions.

    The 95 % intervals are over test videos and seeds, and each is for one row. A row with one seed uses the variance
    over seeds of the other rows. If all rows have one seed, its interval is over videos only.

    Args:
        rows: of each row, two arrays (S, Q), before and after: chances in [0, 1] that a caption finds its video first.
        videos: (Q,) the video that each query describes.

    Raises:
        ValueError: for fewer than two videos.
    """
    changes = [_points(after) - _points(before) for before, after in rows]  # each (S, Q)
    cluster, parts = _groups(changes[0].shape[1], videos, None)
    counts = [len(d) if d.any() else 0 for d in changes]  # 0 seeds: without a change, R@1 does not vary
    spread = of_seeds([(n, *_over_replicates(d, cluster, parts)) for n, d in zip(counts, changes)], None)
    found = []
    for row, d in enumerate(changes):
        of_videos = _over_videos(d.mean(axis=0)[None], cluster, parts)
        found.append(Family().judge(float(d.mean()), *of_videos, *(spread.of(row) if spread else ())))
    return found


def _points(chances: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the contribution (S, Q) of each query to R@1 in percent: 100 times the probability of a first rank.

    Raises:
        ValueError: if a chance is not within 0 and 1.
    """
    found = np.atleast_2d(np.asarray(chances, float))
    if found.size and not (found.min() >= 0 and found.max() <= 1):
        raise ValueError("a chance that a video is found first must be within 0 and 1.")
    return 100.0 * found


def _unknown(value: float) -> Difference:
    """Return a difference with an infinite interval, because its variance is unknown. It is never significant."""
    return Difference(value, -math.inf, math.inf, 1.0, math.inf)


# ------------------------------------------------------------------------------------------------ variances


def _groups(
    queries: int, videos: Sequence[object] | np.ndarray | None, tasks: Sequence[int] | np.ndarray | None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the index of the video of each query (Q,), and the indices of the queries of each task."""
    _, cluster = np.unique(np.arange(queries) if videos is None else np.asarray(videos, str), return_inverse=True)
    task = np.zeros(queries, int) if tasks is None else np.asarray(tasks)
    return cluster, [np.flatnonzero(task == index) for index in np.unique(task)]


def _by_order(rows: Sequence[np.ndarray], orders: Sequence[Sequence[object] | np.ndarray]) -> list[np.ndarray]:
    """Average the seeds of each order: (runs, Q) of each row to (O, Q).

    Raises:
        ValueError: if the rows have different orders.
    """
    named = [list(map(str, each)) for each in orders]
    names = sorted(set(named[0]))
    if any(set(each) != set(names) for each in named):
        raise ValueError("rows of different orders of tasks cannot be paired.")
    return [np.array([row[np.array(own) == name].mean(axis=0) for name in names]) for row, own in zip(rows, named)]


def _over_videos(d: np.ndarray, cluster: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[float, int]:
    """Return the variance over videos of the mean over tasks, summed over the rows of `d` (R, Q), and its df.

    Captions of one video are one sample.

    Raises:
        ValueError: if a task has only one video.
    """
    total, freedom = 0.0, 0
    for part in parts:
        number = len(np.unique(cluster[part]))
        if number < 2:
            raise ValueError("a task has only one video: no variance over videos is known. Use at least two.")
        for row in d:
            sums = np.bincount(cluster[part], row[part] - row[part].mean())
            total += number / (number - 1) * float((sums**2).sum()) / len(part) ** 2
        freedom += number - 1
    return total / len(parts) ** 2, freedom


def _over_replicates(runs: np.ndarray, cluster: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the variance of R@1 between replicates `runs` (R, Q), and its part from the interaction with videos."""
    if len(runs) < 2:
        return 0.0, 0.0
    means = np.mean([runs[:, part].mean(axis=1) for part in parts], axis=0)  # (R,)
    new, _ = _over_videos(runs - runs.mean(axis=0), cluster, parts)
    return float(np.var(means, ddof=1)), new / (len(runs) - 1)


def of_seeds(rows: Sequence[tuple[int, float | np.ndarray, float | np.ndarray]], best: int | None) -> Spread | None:
    """Return the variances of the rows over seeds, or None if no trained row has two seeds.

    Args:
        rows: of each row, the number of seeds (0: not trained), and the two variances from `_over_replicates`.
        best: the row that is subtracted from the other rows. If None, the rows are differences already.
    """
    known = [index for index, (seeds, _, _) in enumerate(rows) if seeds > 1]
    if not known:
        return None
    df = np.array([rows[index][0] - 1.0 for index in known])
    seen, both = (np.array([rows[index][place] for index in known], float) for place in (1, 2))  # (J, ...)
    flat = df.reshape(-1, *[1] * (seen.ndim - 1))
    mean = flat / df.sum()  # weights of the mean variance of all rows
    prior = _prior(seen, flat)
    weights = np.zeros((len(rows), *seen.shape))
    for index, (seeds, _, _) in enumerate(rows):
        own = np.array(known) == index
        keep = (seeds - 1) / (seeds - 1 + prior[own][0]) if seeds > 1 else 0.0
        if seeds:
            weights[index] = ((1 - keep) * mean + keep * own.reshape(flat.shape)) / seeds
    moderated = (weights[known] * (flat + 1)[:, None] * seen).sum(axis=1)
    every = [np.broadcast_to(each, (len(rows), *each.shape)) for each in (seen, both, moderated)]
    return Spread(every[0], every[1], df, every[2], weights if best is None else weights + weights[best])


def _prior(seen: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Return the prior degrees of freedom (J, ...) of the J variances `seen`, which have `df` (J, ...) degrees.

    They are `PRIOR`, except for an outlier: a variance whose probability, given the other rows, is below
    `OUTLIER_PROBABILITY`. An outlier has fewer degrees, in proportion to that probability (Phipson et al. 2016).
    """
    rest = df.sum() - df
    if not rest.any():
        return np.full(seen.shape, PRIOR)
    others = ((df * seen).sum(axis=0) - df * seen) / rest
    ratio = np.divide(seen, others, out=np.where(seen > 0, np.inf, 0.0), where=others > 0)
    return PRIOR * np.minimum(1.0, special.fdtrc(df, rest, ratio) / OUTLIER_PROBABILITY)


def _of_orders(runs: np.ndarray, best: int, cluster: np.ndarray, parts: Sequence[np.ndarray]) -> Spread | None:
    """Return the variances over task orders of rows (K, O, Q), or None for one order.

    They are the variance of the paired difference of each row, and the variance of all other contrasts.
    """
    rows, orders, _ = runs.shape
    if orders < 2:
        return None
    means = np.mean([runs[:, :, part].mean(axis=2) for part in parts], axis=0)  # (K, O)
    own = np.array([_over_replicates(row - runs[best], cluster, parts) for row in runs])  # (K, 2)
    all_contrasts = 2 * float(np.var(means - means.mean(axis=0), axis=1, ddof=1).sum())
    df = float(orders - 1)
    share = (df + PRIOR / (rows - 1)) / (df + PRIOR)
    others = (all_contrasts - own[:, 0]) / max(1, rows - 2)
    seen = np.stack([own[:, 0], others], axis=1)  # (K, 2)
    weights = np.tile([share, 1 - share], (rows, 1))
    moderated = np.stack([(seen * weights).sum(axis=1), others], axis=1)
    return Spread(seen, own[:, [1, 1]], df * np.array([1, max(1, rows - 2)]), moderated, weights / orders)
