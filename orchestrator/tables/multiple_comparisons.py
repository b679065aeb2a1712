"""Distributions of differences: variance, degrees of freedom, and simultaneous p and interval of several comparisons.

orchestrator/tables/intervals.py describes the rules and their sources.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special  # scipy.optimize takes 0.2 s of CPU time to import

from ctvr.orchestrator.tables.table import LEVEL, Difference

STEP = 1e-8  # precision of a quantile
POWER = 0.8  # power with which a detectable difference is found significant


def combined(
    of_videos: float | np.ndarray,
    freedom: float,
    seen: float | np.ndarray,
    both: float | np.ndarray,
    few: float | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance V of a difference and its degrees of freedom. The arguments are those of `Family.judge`.

    Both are continuous in `seen`, and the interval does not become narrower as `seen` rises. The replicates contribute
    U = max(0, seen X - both), where X = chi-square / few. The first two moments of U follow from tail probabilities of
    chi-square distributions with few, few + 2 and few + 4 degrees of freedom.
    """
    of_videos, seen, both, few = (np.asarray(each, float) for each in (of_videos, seen, both, few))
    variance = of_videos + np.maximum(0.0, seen - both)
    edge = few * np.divide(both, seen, out=np.full(np.broadcast(both, seen).shape, np.inf), where=seen > 0)
    none, once, twice = (special.chdtrc(few + more, np.where(both > 0, edge, 0.0)) for more in (0, 2, 4))
    mean = seen * once - both * none
    square = seen**2 * (1 + 2 / few) * twice - 2 * seen * both * once + both**2 * none
    spread = of_videos**2 / freedom + np.maximum(0.0, square - mean**2) / 2
    df = np.divide(variance**2, spread, out=np.full(spread.shape, float(freedom)), where=spread > 0)
    return variance, np.maximum(1.0, df)


@dataclass(frozen=True)
class Family:
    """Comparisons of one row of a table with the `rows` - 1 other rows.

    If `is_chosen`, the row was chosen because it is the best by the same data. Otherwise it was selected in advance,
    and p and interval apply to the best of the other rows.
    """

    rows: int = 2
    is_chosen: bool = True

    def judge(
        self,
        value: float,
        of_videos: float,
        freedom: float,
        seen: float | np.ndarray = 0.0,
        both: float | np.ndarray = 0.0,
        few: float | np.ndarray = 1.0,
    ) -> Difference:
        """Return a difference with its interval and p, both from the same distribution.

        Args:
            value: the difference.
            of_videos, freedom: variance over test videos and its degrees of freedom.
            seen, both, few: variance over replicates, its part from the interaction, its degrees of freedom.
        """
        variance, df = combined(of_videos, freedom, seen, both, few)
        if variance <= 0:
            return Difference(value, value, value, 1.0 if value == 0 else 0.0, 0.0)
        return self.with_interval(value, math.sqrt(variance), float(df))

    def with_interval(self, value: float, error: float, df: float) -> Difference:
        """Return the difference `value` with its interval and p, given its standard error and degrees of freedom."""
        half = self.quantile(df) * error
        detectable = half + float(special.stdtrit(df, POWER)) * error
        return Difference(value, value - half, value + half, self.tail(abs(value) / error, df), detectable)

    def tail(self, t: float, df: float) -> float:
        """Return the p-value of |t|: the probability of at least `t` if all rows are equal (see `_largest`)."""
        if self.rows <= 2 or t <= 0:
            return float(2 * special.stdtr(df, -t))
        points, weights = _largest(self.rows, self.is_chosen)
        return min(1.0, float(weights @ special.chdtr(df, df * (points / t) ** 2)))

    def quantile(self, df: float) -> float:
        """Return the critical value t, at which `tail` is `LEVEL`."""
        if self.rows <= 2:
            return -float(special.stdtrit(df, LEVEL / 2))
        least, most = (-float(special.stdtrit(df, level)) for level in (LEVEL, LEVEL / 2 / math.comb(self.rows, 2)))
        steps = range(int((1.01 * most - least) / STEP))
        return least + STEP * bisect_left(steps, -LEVEL, key=lambda step: -self.tail(least + STEP * step, df))


@lru_cache(maxsize=64)
def _largest(rows: int, is_chosen: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights of the distribution of a difference among `rows` standard normal values, over sqrt(2).

    If `is_chosen`, the difference is the range of the values. Otherwise it is the absolute difference between one value
    and the largest of the others.
    """
    edges, x = np.linspace(0, 12, 601), np.linspace(-8, 8, 401)
    above, below = special.ndtr(x[:, None] + edges), special.ndtr(x[:, None] - edges)
    if is_chosen:
        inside = rows * (special.ndtr(x[:, None]) - below) ** (rows - 1)
    else:
        inside = above ** (rows - 1) - below ** (rows - 1)
    density = np.exp(-(x**2) / 2)[:, None] * inside / math.sqrt(2 * math.pi)
    cdf = np.diff(x) @ (density[1:] + density[:-1]) / 2  # trapezoids
    return (edges[1:] + edges[:-1]) / 2 / math.sqrt(2), np.diff(cdf)
