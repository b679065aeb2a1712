"""Metrics against brute force, with ties, and the identities of the papers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from orchestrator.learning import metrics


def brute_rank(row: list[float], own: int) -> float:
    better = sum(1 for value in row if value > row[own])
    equal = sum(1 for index, value in enumerate(row) if value == row[own] and index != own)
    return 1 + better + equal / 2


@pytest.mark.parametrize("seed", range(5))
def test_ranks_agree_with_brute_force_ties_included(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 6, (40, 30), generator=generator).float()  # many ties
    target = torch.randint(0, 30, (40,), generator=generator)
    expected = [brute_rank(row.tolist(), int(own)) for row, own in zip(scores, target)]
    assert metrics.ranks(scores, target).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_ranks_of_videos_and_of_their_captions_agree_with_brute_force(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 9, (30, 8), generator=generator).float()
    target = torch.randint(0, 7, (30,), generator=generator)  # video 7 has no caption
    by_video, by_caption = [], []
    captioned = sorted(set(target.tolist()))
    for video in captioned:
        best = {v: max(scores[q, video].item() for q in range(30) if target[q] == v) for v in captioned}
        by_video.append(brute_rank(list(best.values()), captioned.index(video)))
        others = [scores[q, video].item() for q in range(30) if target[q] != video]
        by_caption.append(1 + sum(o > best[video] for o in others) + sum(o == best[video] for o in others) / 2)
    assert metrics.video_ranks(scores, target).tolist() == by_video
    assert metrics.caption_ranks(scores, target).tolist() == by_caption
    assert all(of_video <= of_caption for of_video, of_caption in zip(by_video, by_caption))


def test_both_directions_agree_with_the_released_codes_where_videos_have_several_captions(compared):
    released = json.loads(Path(__file__).with_name("released_metrics.json").read_text())
    scores, target = torch.tensor(released["captions_x_videos"]), torch.tensor(released["target"])
    for direction, ranks in (("t2v", metrics.ranks), ("v2t", metrics.video_ranks)):
        found = metrics.summary(ranks(scores, target))
        names = {"R1": "r1", "R5": "r5", "R10": "r10", "MedR": "medr", "MeanR": "meanr"}
        for name, ours in names.items():
            compared("clip4clip", "evaluation", found[ours], released[direction][name], 1e-6)
    assert metrics.summary(metrics.caption_ranks(scores, target))["meanr"] > found["meanr"]


def test_a_perfect_model_has_recall_100_and_rank_1():
    summary = metrics.summary(metrics.ranks(torch.eye(7), torch.arange(7)))
    assert summary == {"r1": 100.0, "r5": 100.0, "r10": 100.0, "rsum": 300.0, "medr": 1.0, "meanr": 1.0}


def test_constant_scores_rank_in_the_middle_of_the_gallery():
    assert metrics.ranks(torch.ones(3, 9), torch.arange(3)).tolist() == [5.0, 5.0, 5.0]


def test_nan_never_ranks_first():
    scores = torch.full((4, 10), math.nan)
    assert metrics.ranks(scores, torch.arange(4)).tolist() == [5.5] * 4
    scores[:, 9] = 1.0
    assert (metrics.ranks(scores, torch.arange(4)) > 5).all()


def test_recall_grows_with_k():
    rank = metrics.ranks(torch.randn(50, 50), torch.arange(50))
    values = [metrics.recall(rank, k) for k in range(1, 51)]
    assert values == sorted(values)
    assert values[-1] == 100.0


def test_shuffling_the_gallery_changes_no_metric():
    scores, order = torch.randn(30, 30), torch.randperm(30)
    place = torch.empty_like(order)
    place[order] = torch.arange(30)
    before = metrics.summary(metrics.ranks(scores, torch.arange(30)))
    assert metrics.summary(metrics.ranks(scores[:, order], place)) == before


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


def test_twin_accuracy_counts_ties_one_half():
    scores = torch.tensor([[2.0, 1.0], [1.0, 1.0], [3.0, 1.0]])
    target, twin = torch.tensor([0, 1, 1]), torch.tensor([1, 0, -1])
    assert metrics.twin_accuracy(scores, target, twin) == 75.0
    assert math.isnan(metrics.twin_accuracy(scores, target, torch.full((3,), -1)))
