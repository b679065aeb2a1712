"""Ranks counted tile by tile equal those of the complete matrix, for all tiles, ties and NaN."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ctvr.orchestrator.learning import metrics, ranking
from ctvr.orchestrator.learning.ranking import Ranked, rank, score_reader, topk


def whole(scores: Tensor, target: Tensor) -> Ranked:
    return rank(score_reader(scores), target, (0, len(target)), (0, scores.shape[1]))


def brute_rank(row: list[float], own: int) -> float:
    better = sum(1 for value in row if value > row[own])
    equal = sum(1 for index, value in enumerate(row) if value == row[own] and index != own)
    return 1 + better + equal / 2


def brute(scores: Tensor, target: Tensor) -> tuple[list[float], list[float], list[float]]:
    """Rank captions among videos, videos by their best captions, and best captions among those of other videos."""
    scores = scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    rows, columns = scores.tolist(), scores.mT.tolist()
    captioned, owner = sorted(set(target.tolist())), target.tolist()
    by_video, by_caption = [], []
    for video in captioned:
        said = {v: max(value for value, own in zip(columns[video], owner) if own == v) for v in captioned}
        by_video.append(brute_rank(list(said.values()), captioned.index(video)))
        others = [value for value, own in zip(columns[video], owner) if own != video]
        by_caption.append(1 + sum(o > said[video] for o in others) + sum(o == said[video] for o in others) / 2)
    return [brute_rank(row, own) for row, own in zip(rows, owner)], by_video, by_caption


@pytest.mark.parametrize(("kept", "scatters"), [(0, ("cpu",)), (2**25, ("cpu",)), (0, ())])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_equal_brute_force_for_all_tile_sizes(seed, kept, scatters, monkeypatch):
    """Draw ties, NaN, infinities; one, several or no captions per video, adjacent or not; one task or three."""
    generator = torch.Generator().manual_seed(seed)
    tile, chunk = ((1, 1), (3, 2), (4, 7), (100, 100))[seed % 4]
    monkeypatch.setattr(ranking, "TILE", tile)
    monkeypatch.setattr(ranking, "KEPT", kept)
    monkeypatch.setattr(ranking, "SCATTERS", scatters)  # on another device the groups are gathered
    sizes = [(5, 5), (13, 4), (9, 8)][: 1 + seed % 3]
    parts = [torch.randint(0, videos, (captions,), generator=generator) for captions, videos in sizes]
    parts = [part if seed % 5 == 4 else part.sort().values for part in parts]
    parts[0] = torch.arange(5)
    rows = [sum(captions for captions, _ in sizes[:i]) for i in range(len(sizes) + 1)]
    columns = [sum(videos for _, videos in sizes[:i]) for i in range(len(sizes) + 1)]
    target = torch.cat([part + first for part, first in zip(parts, columns)])
    scores = torch.randint(0, 6, (rows[-1], columns[-1]), generator=generator).to(
        torch.float64 if seed % 2 else torch.float32
    )
    noise = torch.rand(scores.shape, generator=generator)
    scores[noise < 0.1], scores[(noise > 0.1) & (noise < 0.2)], scores[noise > 0.95] = math.nan, -math.inf, math.inf
    twin = torch.where(torch.rand(rows[-1], generator=generator) < 0.5, target.flip(0), -1)
    found = rank(score_reader(scores), target, rows, columns, twin, chunk)
    assert [found.to_videos.tolist(), found.videos.tolist(), found.captions.tolist()] == list(brute(scores, target))
    own = [brute(scores[rows[i] : rows[i + 1], columns[i] : columns[i + 1]], parts[i])[:2] for i in range(len(sizes))]
    assert found.own.tolist() == [r for each in own for r in each[0]]
    assert found.own_videos.tolist() == [r for each in own for r in each[1]]
    assert found.captioned.tolist() == sorted(set(target.tolist()))
    known = scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    pairs = [(known[i, target[i]], known[i, t], t) for i, t in enumerate(twin.tolist())]
    beats = [math.nan if t < 0 else float(a > b) + float(a == b) / 2 for a, b, t in pairs]
    assert found.beats_twin.nan_to_num(nan=-1).tolist() == [-1 if math.isnan(b) else b for b in beats]

    order = known.sort(dim=1, descending=True, stable=True)
    values, places = topk(score_reader(scores), rows[-1], columns, 4, chunk)
    assert torch.equal(values, order.values[:, :4])
    assert torch.equal(places, order.indices[:, :4])  # of equal ones the first


def test_no_more_than_a_tile_is_scored_at_once_and_none_twice_that_fits(monkeypatch):
    monkeypatch.setattr(ranking, "TILE", 8)
    asked: list[tuple[int, int]] = []
    captions, videos = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))

    def score(rows: slice, columns: slice) -> Tensor:
        asked.append((rows.start, columns.start))
        assert rows.stop - rows.start <= 10
        assert columns.stop - columns.start <= 8
        return captions[rows] @ videos[columns].mT

    plain = whole(captions @ videos.mT, torch.arange(40))
    found = rank(score, torch.arange(40), (0, 40), (0, 40), chunk=10)
    assert torch.equal(found.to_videos, plain.to_videos)
    assert torch.equal(found.videos, plain.videos)
    assert len(asked) == len(set(asked)) == 20
    asked.clear()
    assert torch.equal(topk(score, 40, (0, 40), 3, chunk=10)[1], (captions @ videos.mT).topk(3).indices)
    assert len(asked) == 20


def test_both_directions_agree_with_the_releases_for_several_captions(compared):
    released = json.loads(Path(__file__).with_name("released_metrics.json").read_text())
    found = whole(torch.tensor(released["captions_x_videos"]), torch.tensor(released["target"]))
    for direction, ranks in (("t2v", found.to_videos), ("v2t", found.videos)):
        said = metrics.summary(ranks)
        names = {"R1": "r1", "R5": "r5", "R10": "r10", "MedR": "medr", "MeanR": "meanr"}
        for name, ours in names.items():
            compared("clip4clip", "evaluation", said[ours], released[direction][name], 1e-6)
    assert metrics.summary(found.captions)["meanr"] > metrics.summary(found.videos)["meanr"]


def test_constant_scores_and_nan_rank_in_the_middle_of_the_gallery():
    assert whole(torch.ones(3, 9), torch.arange(3)).to_videos.tolist() == [5.0, 5.0, 5.0]
    scores = torch.full((4, 10), math.nan)
    assert whole(scores, torch.arange(4)).to_videos.tolist() == [5.5] * 4
    scores[:, 9] = 1.0
    assert (whole(scores, torch.arange(4)).to_videos > 5).all()


def test_without_captions_there_is_no_rank():
    found = rank(score_reader(torch.zeros(0, 3)), torch.zeros(0, dtype=torch.int64), (0, 0), (0, 3))
    assert len(found.to_videos) == len(found.videos) == 0
