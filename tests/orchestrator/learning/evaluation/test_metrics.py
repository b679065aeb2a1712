"""Metrics equal a brute-force computation, with ties, and the papers' identities."""

import pytest
import torch

from ctvr.orchestrator.learning.evaluation import metrics
from ctvr.orchestrator.learning.evaluation.ranking import Positions


def test_a_perfect_model_has_recall_100_and_rank_1():
    nothing = torch.zeros(7, dtype=torch.float64)
    summary = metrics.summary(Positions(nothing, nothing, nothing + 1))
    assert summary == {"r1": 100.0, "r5": 100.0, "r10": 100.0, "rsum": 300.0, "medr": 1.0, "meanr": 1.0}


def test_recall_grows_with_k():
    better, nothing = torch.randperm(50).double(), torch.zeros(50, dtype=torch.float64)
    found = Positions(better, nothing, nothing + 1)
    values = [metrics.recall(found, k) for k in range(1, 51)]
    assert values == sorted(values)
    assert values[-1] == 100.0


def test_forgetting_of_a_constant_matrix_is_zero():
    matrix = [[40.0], [40.0, 30.0], [40.0, 30.0, 20.0]]
    assert metrics.backward_forgetting(matrix) == 0
    assert metrics.forgetting_rate(matrix) == 0


def test_backward_forgetting_is_the_mean_loss_since_each_task_was_learned():
    matrix = [[50.0], [45.0, 60.0], [40.0, 66.0, 30.0]]
    assert metrics.backward_forgetting(matrix) == pytest.approx(((50 - 40) + (60 - 66)) / 2)
    assert metrics.backward_forgetting(matrix[:1]) == 0


@pytest.mark.parametrize("seed", range(10))
def test_forgetting_rate_is_n_times_current_minus_final(seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = [(100 * torch.rand(t + 1, generator=generator)).tolist() for t in range(5)]
    current = sum(matrix[i][i] for i in range(5)) / 5
    final = sum(matrix[-1]) / 5
    assert metrics.forgetting_rate(matrix) == pytest.approx(5 * (current - final))
    assert metrics.forgetting_rate(matrix) == pytest.approx(4 * metrics.backward_forgetting(matrix))
    assert min(current, final) <= metrics.harmonic_mean(matrix) <= max(current, final)


def test_harmonic_mean_reproduces_the_papers_row():
    """BMU-MoCo, table 1: final 35.47, FR 22.63 -> HM 37.60 (printed 37.59)."""
    current = 35.47 + 22.63 / 5
    assert 2 * current * 35.47 / (current + 35.47) == pytest.approx(37.60, abs=0.01)
    matrix = [[35.47] * row + [current] for row in range(4)]
    matrix.append([35.47 - (current - 35.47) / 4] * 4 + [current])  # mean 35.47, current everywhere
    assert metrics.harmonic_mean(matrix) == pytest.approx(37.60, abs=0.01)
    assert metrics.harmonic_mean([[10.0], [10.0, 10.0]]) == pytest.approx(10.0)
