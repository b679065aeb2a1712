"""Differences between rows: their level under the null, their parts by hand, Holm's correction."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from orchestrator.tables.null_simulation import Situation, draw, false_positives
from orchestrator.tables.significance import ORDERS, Ranks, compared, difference, holm
from orchestrator.tables.student import quantile, two_sided
from orchestrator.tables.table import Row, Value

CAPTIONS = Situation("captions", videos=60, captions=10)
SEEDS = Situation("seeds", videos=200, seeds=3, seed_points=2.0)
BOTH = Situation("both", videos=60, captions=10, seeds=3, seed_points=1.0)


@pytest.mark.parametrize("situation", [CAPTIONS, SEEDS, BOTH], ids=lambda situation: situation.name)
def test_equal_methods_are_called_different_in_at_most_7_percent(situation):
    assert false_positives(situation, 600, seed=1) <= 0.07


def test_these_situations_catch_a_comparison_that_forgets_videos_or_seeds():
    rng = np.random.default_rng(0)
    without_videos = without_seeds = 0
    for _ in range(100):
        (a, b), _ = draw(CAPTIONS, rng)
        without_videos += difference(a, b).p < 0.05
        (a, b), _ = draw(SEEDS, rng)
        without_seeds += difference(*(ranks.reshape(1, -1) for ranks in (a, b))).p < 0.05
    assert without_videos > 15
    assert without_seeds > 15


def test_a_real_difference_is_seen_and_its_interval_holds_it():
    rng = np.random.default_rng(1)
    (a, b), videos = draw(Situation("", videos=500, seeds=3, seed_points=0.5), rng)
    b = np.where(rng.random(b.shape) < 0.3, 1, b)
    found = difference(a, b, videos)
    assert found.p < 0.001
    assert found.low < 100 * ((b <= 1).mean() - (a <= 1).mean()) == found.value < found.high
    assert found.turned().value == -found.value


def test_equals_are_equal_and_certainty_is_certain():
    ranks = np.random.default_rng(0).integers(1, 5, 400)
    assert difference(ranks, ranks).p == 1.0
    assert difference(np.full(9, 1), np.full(9, 2)).p == 0.0


def test_one_seed_each_is_a_paired_t_test_over_videos():
    a, b = np.array([1, 1, 2, 1, 2, 1, 1, 1]), np.array([1, 2, 2, 2, 2, 1, 2, 1])
    d = 100.0 * ((b <= 1).astype(float) - (a <= 1))
    found = difference(a, b)
    t = d.mean() / math.sqrt(d.var(ddof=1) / 8)
    assert found.p == pytest.approx(two_sided(t, 7))
    assert found.high - found.value == pytest.approx(quantile(0.05, 7) * math.sqrt(d.var(ddof=1) / 8))


def test_seeds_add_welchs_variance_and_a_single_seed_borrows_it():
    a = np.array([[1, 1, 1, 2], [1, 1, 2, 2]])  # 75 and 50
    b = np.array([[2, 2, 1, 2], [2, 2, 2, 2]])  # 25 and 0
    d = 100 * np.array([-1.0, -1.0, 0.0, 0.0])
    of_videos, of_seeds = d.var(ddof=1) / 4, 2 * 312.5 / 2
    df = (of_videos + of_seeds) ** 2 / (of_videos**2 / 3 + 2 * (312.5 / 2) ** 2)
    assert difference(a, b).p == pytest.approx(two_sided(-50 / math.sqrt(of_videos + of_seeds), df))
    assert difference(a, b[:1]).p > difference(a[:1], b[:1]).p


def test_tasks_weigh_alike():
    large, small = np.array([1] * 80 + [9] * 10), np.array([9] * 80 + [1] * 10)
    assert difference(large, small, tasks=[0] * 80 + [1] * 10).value == 0.0  # each wins one task
    assert difference(large, small).value == pytest.approx(-100 * 70 / 90)
    with pytest.raises(ValueError, match="one video in a task"):
        difference([1, 1], [2, 2], videos=["a", "a"])


def test_ranks_of_other_queries_cannot_be_paired():
    with pytest.raises(ValueError, match="3 and 2 queries"):
        difference([1, 2, 3], [1, 2])


@pytest.mark.parametrize(("t", "df", "p"), [(2.7764, 4, 0.05), (12.706, 1, 0.05), (3.1824, 3, 0.05), (1.96, 1e7, 0.05)])
def test_students_t_is_that_of_the_tables(t, df, p):
    assert two_sided(t, df) == pytest.approx(p, abs=1e-4)
    assert quantile(p, df) == pytest.approx(t, abs=1e-3)


def test_holm_is_the_step_down_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    for p in product([0.001, 0.02, 0.5], repeat=3):
        assert all(a >= b for a, b in zip(holm(p), p))
        assert sorted(holm(p)) == [holm(p)[i] for i in sorted(range(3), key=lambda i: p[i])]


def test_rows_over_several_orders_of_tasks_are_not_compared():
    """Runs of order x seed are no independent seeds: two equal methods were called different in up to 25 %."""
    one = Row("lwf", "lwf", {"r1": Value(30.0)}, ("0",), ("a",))
    several = replace(one, label="zscl", method="zscl", runs=("b",), orders={"r1": ((0, 1.0, 0.0), (1, 2.0, 0.0))})
    other = replace(one, label="ewc", method="ewc", runs=("c",))
    ranks = {name: Ranks({f"v{n}#0": float(1 + n % 3) for n in range(30)}, {}) for name in "abc"}
    found = compared([one, several, other], ranks)
    assert [row.vs_best is not None or row.is_reference for row in found] == [True, False, True]
    assert found[1].marks == (ORDERS,)
    assert compared([one, replace(several, orders={})], ranks)[1].vs_best is not None
