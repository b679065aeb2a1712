"""Unbalanced designs for the null simulation: unequal rows, one seed, task orders, several captions per video.

Each simulated table is tested by `intervals.differences`. Scores have the model of `null_simulation`, at R@1 25 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctvr.orchestrator.tables.intervals import compare_over_seeds, differences
from ctvr.orchestrator.tables.multiple_comparisons import Family
from ctvr.orchestrator.tables.table import LEVEL

VIDEO, SUITS, FRESH = 0.5, 0.4, 0.5  # sd of a video's effect on all methods, on one method, and of each run's noise
SPREAD = float(np.sqrt(VIDEO**2 + SUITS**2 + 1 + FRESH**2))
THRESHOLD = 0.6745  # of a standard normal score: R@1 is 25 %
PER_POINT = (
    0.01 * SPREAD * float(np.sqrt(2 * np.pi) * np.exp(0.5 * THRESHOLD**2))
)  # change of the score that raises R@1 by one point


@dataclass(frozen=True)
class Design:
    """Design of a simulated table: its rows, and the standard deviations of R@1 in points."""

    name: str
    seeds: tuple[int, ...]  # number for each method in each order; 0 for a method that is not trained
    seed_points: tuple[float, ...] = (1.0,)  # standard deviation over seeds, of one or each method
    videos: int = 480  # 0 for a metric with one value per seed
    captions: int = 1
    orders: int = 1
    order_points: float = 0.0  # effect of an order on all methods
    own_order_points: tuple[float, ...] = (0.0,)  # effect of an order on one method
    is_search: bool = False  # whether the first row is the recommended one, with which the best other is compared


class OnlyP(Family):
    """Family that gives p-values but no intervals, because quantiles take most of the time of `differences`."""

    def quantile(self, df: float) -> float:
        """Return infinity instead of the quantile, which only intervals need."""
        return float("inf")


def _orders(name: str, rows: int, orders: int, seeds: int, common: float, *own: float) -> Design:
    return Design(name, (seeds,) * rows, (0.7,), 1000, orders=orders, order_points=common, own_order_points=own)


DESIGNS = (
    Design("2 rows, sd 2 and 0.3, 2990 queries", (3, 3), (2.0, 0.3), 2990),
    Design("3 rows, sd 2, 0.3, 0.3, 2990 queries", (3,) * 3, (2.0, 0.3, 0.3), 2990),
    Design("6 rows, one of sd 2, others 0.5", (3,) * 6, (2.0, *[0.5] * 5)),
    Design("6 rows, one of sd 2, others 0.5, 2990 queries", (3,) * 6, (2.0, *[0.5] * 5), 2990),
    Design("6 rows, two of sd 2, others 0.5, 2990 queries", (3,) * 6, (2.0, 0.5, 0.5), 2990),
    Design("12 rows, one of sd 2, others 0.5", (3,) * 12, (2.0, *[0.5] * 11)),
    Design("2 rows, 5 and 3 seeds", (5, 3)),
    Design("2 rows, 1 and 3 seeds", (1, 3)),
    Design("4 rows, one of 1 seed", (1, 3, 3, 3)),
    Design("3 rows, 2 seeds", (2, 2, 2)),
    Design("2 rows, nothing trained and 3 seeds", (0, 3)),
    Design("4 rows, one trains nothing", (3, 3, 3, 0)),
    Design("2 rows, nothing trained", (0, 0), videos=1000),
    Design("12 rows, nothing trained", (0,) * 12),
    Design("2 rows, nothing trained, 20 captions a video", (0, 0), videos=300, captions=20),
    Design("2 rows, 20 captions a video", (3, 3), videos=300, captions=20),
    Design("6 rows, 10 captions a video", (3,) * 6, videos=100, captions=10),
    _orders("2 rows, 5 orders of 3 seeds, no effect", 2, 5, 3, 0.0, 0.0),
    _orders("2 rows, 5 orders of 3 seeds, order sd 2", 2, 5, 3, 2.0, 0.0),
    _orders("2 rows, 5 orders of 3 seeds, order x method sd 1.5", 2, 5, 3, 0.0, 1.5),
    _orders("2 rows, 4 orders of 1 seed, order x method sd 1", 2, 4, 1, 0.0, 1.0),
    _orders("3 rows, 5 orders of 3 seeds, both", 3, 5, 3, 2.0, 1.5),
    _orders("6 rows, 5 orders of 1 seed, both", 6, 5, 1, 2.0, 1.0),
    _orders("6 rows, 5 orders of 1 seed, own sd 2, 0.5, 0.5, ...", 6, 5, 1, 0.0, 2.0, 0.5, 0.5),
    _orders("6 rows, 4 orders of 3 seeds, both", 6, 4, 3, 2.0, 1.5),
    _orders("12 rows, 5 orders of 1 seed, no effect", 12, 5, 1, 0.0, 0.0),
    Design("confirmation of 2 challengers, sd 2, 0.5, 0.5", (3,) * 3, (2.0, 0.5, 0.5), is_search=True),
    Design("confirmation of 2 challengers, other metric", (3,) * 3, videos=0, is_search=True),
)


def draw(design: Design, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    """Simulate a table: return each method's hits (O x S, Q), 0 or 1, order by order, and each query's video (Q,).

    O task orders, S seeds, Q queries.
    """
    s, single = design, np.float32
    queries, videos = s.videos * s.captions, np.repeat(np.arange(s.videos), s.captions)
    common = VIDEO * rng.standard_normal(s.videos, single)[videos] + rng.standard_normal(queries, single)
    of_orders = rng.normal(0, s.order_points, s.orders)
    found = []
    for method, seeds in enumerate(s.seeds):
        points = s.seed_points[method % len(s.seed_points)] if seeds else 0.0
        luck = rng.normal(0, points, (s.orders, max(1, seeds)))
        own = s.own_order_points[method % len(s.own_order_points)]
        luck += (of_orders + rng.normal(0, own, s.orders))[:, None]
        score = common + SUITS * rng.standard_normal(s.videos, single)[videos]
        score = score + FRESH * rng.standard_normal((luck.size, queries), single)
        found.append(np.where(score + PER_POINT * luck.reshape(-1, 1) > THRESHOLD * SPREAD, 1.0, 0.0))
    return found, videos


def is_called_different(design: Design, rng: np.random.Generator) -> bool:
    """Return whether a simulated table has a difference with p < 5 %, or a confirmation's printed difference has."""
    counts, family = design.seeds, OnlyP(len(design.seeds), is_chosen=not design.is_search)
    if design.videos:
        rows, videos = draw(design, rng)
        best = 0 if design.is_search else int(np.argmax([each.mean() for each in rows]))
        orders = [np.repeat(np.arange(design.orders), max(1, count)) for count in counts]
        fixed = [not count for count in counts]
        found = differences(rows, best, videos, None, orders if design.orders > 1 else None, fixed, family)
    else:
        found = compare_over_seeds([rng.normal(0, design.seed_points[0], count) for count in counts])
    if design.is_search:
        found = [max(found[1:], key=lambda each: each.value)]
    return any(each.p < LEVEL for each in found)


def run(design: Design, draws: int, seed: int = 0) -> np.ndarray:
    """Return, for each of N simulated tables, whether equal methods are called different: (N,) bool."""
    rng = np.random.default_rng(seed)
    return np.array([is_called_different(design, rng) for _ in range(draws)])
