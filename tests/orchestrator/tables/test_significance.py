"""Differences between rows: the bootstrap against drawing by hand, Holm's correction, the comparison by tasks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from orchestrator.tables.significance import holm, paired_bootstrap


def test_the_bootstrap_sees_no_difference_between_equals_and_a_large_one_at_once():
    rng = np.random.default_rng(0)
    ranks = rng.integers(1, 5, 400)
    assert paired_bootstrap(ranks, ranks) == 1.0
    assert paired_bootstrap(ranks, np.full(400, 9)) < 0.001
    assert paired_bootstrap([ranks, ranks], ranks) == 1.0


def test_the_bootstrap_agrees_with_drawing_queries_one_by_one():
    rng = np.random.default_rng(1)
    a, b = rng.integers(1, 4, 60), rng.integers(1, 5, 60)
    hit = (a <= 1).astype(float) - (b <= 1)
    drawn = hit[rng.integers(0, 60, (20_000, 60))].mean(axis=1)
    by_hand = np.mean(np.abs(drawn - hit.mean()) >= abs(hit.mean()) - 1e-12)
    assert paired_bootstrap(a, b, seed=3) == pytest.approx(by_hand, abs=0.02)
    assert paired_bootstrap(a, b, seed=3) == paired_bootstrap(a, b, seed=3)
    assert paired_bootstrap(b, a, seed=3) == pytest.approx(by_hand, abs=0.02)


def test_the_bootstrap_keeps_its_level():
    rng = np.random.default_rng(2)
    p = [paired_bootstrap(*rng.integers(1, 4, (2, 300)), seed=n, samples=500) for n in range(200)]
    assert np.mean(np.array(p) < 0.05) < 0.1


def test_ranks_of_other_queries_cannot_be_paired():
    with pytest.raises(ValueError, match="3 and 2 queries"):
        paired_bootstrap([1, 2, 3], [1, 2])


def test_holm_is_the_step_down_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    for p in product([0.001, 0.02, 0.5], repeat=3):
        assert all(a >= b for a, b in zip(holm(p), p))
        assert sorted(holm(p)) == [holm(p)[i] for i in sorted(range(3), key=lambda i: p[i])]


def test_one_task_is_no_task_and_tasks_weigh_alike():
    rng = np.random.default_rng(4)
    a, b = rng.integers(1, 4, 90), rng.integers(1, 4, 90)
    assert paired_bootstrap(a, b, tasks=[3] * 90) == paired_bootstrap(a, b)
    large, small = np.array([1] * 80 + [9] * 10), np.array([9] * 80 + [1] * 10)
    assert paired_bootstrap(large, small, tasks=[0] * 80 + [1] * 10) == 1.0  # each wins one task
    assert paired_bootstrap(large, small) < 0.001


def test_the_bootstrap_over_tasks_agrees_with_drawing_each_tasks_queries():
    rng = np.random.default_rng(5)
    a, b = rng.integers(1, 4, 60), rng.integers(1, 5, 60)
    tasks = np.array([0] * 45 + [1] * 15)
    hit = (a <= 1).astype(float) - (b <= 1)
    means = [hit[tasks == task][rng.integers(0, n, (20_000, n))].mean(axis=1) for task, n in ((0, 45), (1, 15))]
    observed = np.mean([hit[tasks == task].mean() for task in (0, 1)])
    by_hand = np.mean(np.abs(np.mean(means, axis=0) - observed) >= abs(observed) - 1e-12)
    assert paired_bootstrap(a, b, seed=3, tasks=tasks) == pytest.approx(by_hand, abs=0.02)
