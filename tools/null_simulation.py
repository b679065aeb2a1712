"""Simulation of the false-positive rate of tables and confirmations for equal methods: `make null-simulation`.

All methods have the same expected R@1. A query is found first if a normal score exceeds a threshold. The score is the
sum of the video's difficulty, the fit of video and method, the effects of seed and task order, and the query's own
noise, part of which is new with every run. Each draw has new videos, seeds and orders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ctvr.orchestrator.tables.intervals import compare_over_seeds, differences
from ctvr.orchestrator.tables.table import LEVEL

LEAST, MOST = 0.03, 0.07


@dataclass(frozen=True)
class Situation:
    """Shape of a table; standard deviations, except those in points, are on the scale of a query's score."""

    name: str
    videos: int = 480  # 0: a metric with one value per seed
    captions: int = 1
    seeds: tuple[int, ...] = (3, 3)  # of each method, in each order; 0: trains nothing
    seed_points: tuple[float, ...] = (1.0,)  # standard deviation of R@1 over seeds, in points, of one or each method
    orders: int = 1
    order_points: float = 0.0  # effect of an order on all methods
    own_order_points: tuple[float, ...] = (0.0,)  # effect of an order on one method
    is_search: bool = False  # the first row is the recommended one, and the best of the others is compared with it
    video: float = 0.5  # effect of a video on all methods
    suits: float = 0.4  # effect of a video on one method
    fresh: float = 0.5  # a query's noise that is new with every run


def _rows(name: str, *seeds: int, sd: float | tuple[float, ...] = 1.0, videos: int = 480) -> Situation:
    return Situation(name, videos, seeds=seeds, seed_points=sd if isinstance(sd, tuple) else (sd,))


def _orders(name: str, rows: int, orders: int, seeds: int, common: float, *own: float, videos: int = 1000) -> Situation:
    return Situation(name, videos, 1, (seeds,) * rows, (0.7,), orders, common, own)


def _search(name: str, rows: int, sd: tuple[float, ...] = (1.0,), videos: int = 480, seeds: int = 3) -> Situation:
    return Situation(name, videos, seeds=(seeds,) * rows, seed_points=sd, is_search=True)


SITUATIONS = (
    _rows("2 rows, nothing trained, 1000 queries", 0, 0, videos=1000),
    Situation("2 rows, nothing trained, 20 captions a video", 300, 20, (0, 0)),
    Situation("2 rows, 3 seeds, 20 captions a video", 300, 20),
    _rows("2 rows, 3 seeds, sd 0, 2990 queries", 3, 3, sd=0.0, videos=2990),
    _rows("2 rows, 3 seeds, sd 1", 3, 3),
    _rows("2 rows, 3 seeds, sd 1, 160 queries", 3, 3, videos=160),
    _rows("2 rows, 3 seeds, sd 1, 2990 queries", 3, 3, videos=2990),
    _rows("2 rows, 3 seeds, sd 2, 2990 queries", 3, 3, sd=2.0, videos=2990),
    _rows("2 rows, 3 seeds, sd 2 and 0.3, 2990 queries", 3, 3, sd=(2.0, 0.3), videos=2990),
    _rows("2 rows, 2 seeds, sd 1", 2, 2),
    _rows("2 rows, 5 seeds, sd 2, 2990 queries", 5, 5, sd=2.0, videos=2990),
    _rows("2 rows, 5 and 3 seeds, sd 1", 5, 3),
    _rows("2 rows, 1 and 3 seeds, sd 1", 1, 3),
    _rows("2 rows, nothing trained and 3 seeds", 0, 3),
    _rows("3 rows, nothing trained", 0, 0, 0),
    _rows("3 rows, 3 seeds, sd 1", 3, 3, 3),
    _rows("3 rows, 3 seeds, sd 1, 2990 queries", 3, 3, 3, videos=2990),
    _rows("3 rows, 3 seeds, sd 2, 0.3, 0.3, 2990 queries", 3, 3, 3, sd=(2.0, 0.3, 0.3), videos=2990),
    _rows("3 rows, 2 seeds, sd 1", 2, 2, 2),
    _rows("4 rows, one trains nothing", 3, 3, 3, 0),
    _rows("4 rows, one of 1 seed", 1, 3, 3, 3),
    _rows("4 rows, 5 seeds, sd 2", 5, 5, 5, 5, sd=2.0),
    _rows("6 rows, 3 seeds, sd 0", *[3] * 6, sd=0.0),
    _rows("6 rows, 3 seeds, sd 1", *[3] * 6),
    _rows("6 rows, 3 seeds, sd 2, 0.5, 0.5, ...", *[3] * 6, sd=(2.0, 0.5, 0.5)),
    _rows("6 rows, 3 seeds, sd 2, 0.5, ..., 2990 queries", *[3] * 6, sd=(2.0, 0.5, 0.5), videos=2990),
    Situation("6 rows, 3 seeds, 10 captions a video", 100, 10, (3,) * 6),
    _rows("12 rows, nothing trained", *[0] * 12),
    _rows("12 rows, 3 seeds, sd 0", *[3] * 12, sd=0.0),
    _rows("12 rows, 3 seeds, sd 1", *[3] * 12),
    _rows("12 rows, 3 seeds, sd 2", *[3] * 12, sd=2.0),
    _rows("12 rows, 3 seeds, one of sd 2, others 0.5", *[3] * 12, sd=(2.0, *[0.5] * 11)),
    _rows("19 rows, 3 seeds, sd 1", *[3] * 19),
    _orders("2 rows, 5 orders of 3 seeds, no effect", 2, 5, 3, 0.0, 0.0),
    _orders("2 rows, 5 orders of 3 seeds, order sd 2", 2, 5, 3, 2.0, 0.0),
    _orders("2 rows, 5 orders of 3 seeds, order x method sd 1.5", 2, 5, 3, 0.0, 1.5),
    _orders("2 rows, 5 orders of 3 seeds, order x method sd 2", 2, 5, 3, 0.0, 2.0),
    _orders("2 rows, 4 orders of 1 seed, order x method sd 1", 2, 4, 1, 0.0, 1.0),
    _orders("3 rows, 5 orders of 3 seeds, both", 3, 5, 3, 2.0, 1.5),
    _orders("6 rows, 5 orders of 1 seed, both", 6, 5, 1, 2.0, 1.0),
    _orders("6 rows, 5 orders of 1 seed, own sd 2, 0.5, 0.5, ...", 6, 5, 1, 0.0, 2.0, 0.5, 0.5),
    _orders("6 rows, 4 orders of 3 seeds, both", 6, 4, 3, 2.0, 1.5),
    _orders("12 rows, 5 orders of 1 seed, no effect", 12, 5, 1, 0.0, 0.0),
    _search("confirmation of 1 challenger", 2),
    _search("confirmation of 2 challengers", 3),
    _search("confirmation of 2 challengers, sd 2, 0.5, 0.5", 3, (2.0, 0.5, 0.5)),
    _search("confirmation of 1 challenger, other metric", 2, videos=0),
    _search("confirmation of 2 challengers, other metric", 3, videos=0),
    _search("confirmation of 2 challengers, 5 seeds, other metric", 3, videos=0, seeds=5),
)


def draw(situation: Situation, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    """Return chances (O x S, Q), 0 or 1, of each method, order by order, and the video (Q,) of each query."""
    s, single = situation, np.float32
    queries = s.videos * s.captions
    videos = np.repeat(np.arange(s.videos), s.captions)
    spread = np.sqrt(s.video**2 + s.suits**2 + 1 + s.fresh**2)
    per_point = 0.01 * spread * np.sqrt(2 * np.pi) * np.exp(0.5 * 0.6745**2)  # at R@1 = 25 %: threshold of 0.6745
    common = s.video * rng.standard_normal(s.videos, single)[videos] + rng.standard_normal(queries, single)
    of_orders = rng.normal(0, s.order_points, s.orders)
    found = []
    for method, seeds in enumerate(s.seeds):
        points = s.seed_points[method % len(s.seed_points)] if seeds else 0.0
        luck = rng.normal(0, points, (s.orders, max(1, seeds)))
        own = s.own_order_points[method % len(s.own_order_points)]
        luck += (of_orders + rng.normal(0, own, s.orders))[:, None]
        score = common + s.suits * rng.standard_normal(s.videos, single)[videos]
        score = score + s.fresh * rng.standard_normal((luck.size, queries), single)
        found.append(np.where(score + per_point * luck.reshape(-1, 1) > 0.6745 * spread, 1.0, 0.0))
    return found, videos


def is_called_different(situation: Situation, rng: np.random.Generator) -> bool:
    """Return whether one draw shows a difference at 5 %: any difference in a table, or the one that a confirmation
    prints.
    """
    counts = situation.seeds
    if situation.videos:
        rows, videos = draw(situation, rng)
        best = 0 if situation.is_search else int(np.argmax([each.mean() for each in rows]))
        orders = [np.repeat(np.arange(situation.orders), max(1, count)) for count in counts]
        fixed = [not count for count in counts]
        paired = orders if situation.orders > 1 else None
        found = differences(rows, best, videos, None, paired, fixed, not situation.is_search)
    else:
        values = [rng.normal(0, situation.seed_points[0], count) for count in counts]
        found = compare_over_seeds(values)
    if situation.is_search:
        found = [max(found[1:], key=lambda each: each.value)]
    return any(each.p < LEVEL for each in found)


def false_positives(situation: Situation, draws: int, seed: int = 0) -> float:
    """Return the share of draws in which equal methods are called different at 5 %."""
    rng = np.random.default_rng(seed)
    return sum(is_called_different(situation, rng) for _ in range(draws)) / draws


def report(draws: int, write: Callable[[str], object]) -> int:
    """Write one line for each situation and the number of those outside 3-7 %; return that number."""
    outside = 0
    for situation in SITUATIONS:
        share = false_positives(situation, draws)
        outside += not LEAST <= share <= MOST
        write(f"{situation.name:<52} {100 * share:5.1f} %\n")
    write(f"{len(SITUATIONS)} situations, {outside} outside 3-7 %\n")
    return outside


def main(argv: list[str] | None = None) -> int:
    """Print the report; exit status 1 if a situation is outside 3-7 %."""
    parser = argparse.ArgumentParser(prog="python -m tools.null_simulation", description=__doc__)
    parser.add_argument("--draws", type=int, default=4000, help="draws of each situation (default: %(default)s)")
    draws = parser.parse_args(argv).draws

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return 1 if report(draws, write) else 0


if __name__ == "__main__":
    sys.exit(main())
