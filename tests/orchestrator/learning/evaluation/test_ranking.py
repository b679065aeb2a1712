"""Ranks counted tile by tile equal those of the complete matrix, for all tiles, ties and NaN."""

import json
import math
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ctvr.orchestrator.learning.evaluation import metrics, ranking
from ctvr.orchestrator.learning.evaluation.ranking import Positions, Ranked, rank, score_reader, topk
from ctvr.orchestrator.streams.query_rank import Rank


def whole(scores: Tensor, target: Tensor) -> Ranked:
    return rank(score_reader(scores), target, (0, len(target)), (0, scores.shape[1]))


def brute_rank(row: list[float], own: int) -> Rank:
    better = sum(1 for value in row if value > row[own])
    equal = sum(1 for index, value in enumerate(row) if value == row[own] and index != own)
    return Rank(better, equal)


def brute(scores: Tensor, target: Tensor) -> tuple[list[Rank], list[Rank], list[Rank]]:
    """Rank captions among videos, videos by their best captions, and best captions among those of other videos."""
    scores = scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    rows, columns = scores.tolist(), scores.mT.tolist()
    captioned, owner = sorted(set(target.tolist())), target.tolist()
    by_video, by_caption = [], []
    for video in captioned:
        said = {v: max(value for value, own in zip(columns[video], owner) if own == v) for v in captioned}
        by_video.append(brute_rank(list(said.values()), captioned.index(video)))
        others = [value for value, own in zip(columns[video], owner) if own != video]
        own = sum(value == said[video] for value, v in zip(columns[video], owner) if v == video)
        by_caption.append(Rank(sum(o > said[video] for o in others), sum(o == said[video] for o in others), own))
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
    several = (found.to_videos, found.videos, found.captions)
    assert [each.listed() for each in several] == list(brute(scores, target))
    own = [brute(scores[rows[i] : rows[i + 1], columns[i] : columns[i + 1]], parts[i])[:2] for i in range(len(sizes))]
    assert found.own.listed() == [r for each in own for r in each[0]]
    assert found.own_videos.listed() == [r for each in own for r in each[1]]
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
    assert found.to_videos.listed() == plain.to_videos.listed()
    assert found.videos.listed() == plain.videos.listed()
    assert len(asked) == len(set(asked)) == 20
    asked.clear()
    assert torch.equal(topk(score, 40, (0, 40), 3, chunk=10)[1], (captions @ videos.mT).topk(3).indices)
    assert len(asked) == 20


def test_both_directions_agree_with_the_releases_for_several_captions(compared):
    released = json.loads(Path(__file__).with_name("released_metrics.json").read_text())
    found = whole(torch.tensor(released["captions_x_videos"]), torch.tensor(released["target"]))
    for direction, positions in (("t2v", found.to_videos), ("v2t", found.videos)):
        said = metrics.summary(positions)
        names = {"R1": "r1", "R5": "r5", "R10": "r10", "MedR": "medr", "MeanR": "meanr"}
        for name, ours in names.items():
            compared("clip4clip", "evaluation", said[ours], released[direction][name], 1e-6)
    assert metrics.summary(found.captions)["meanr"] > metrics.summary(found.videos)["meanr"]


def test_constant_scores_and_nan_rank_in_the_middle_of_the_gallery():
    assert whole(torch.ones(3, 9), torch.arange(3)).to_videos.rank.tolist() == [5.0, 5.0, 5.0]
    scores = torch.full((4, 10), math.nan)
    assert whole(scores, torch.arange(4)).to_videos.rank.tolist() == [5.5] * 4
    scores[:, 9] = 1.0
    assert (whole(scores, torch.arange(4)).to_videos.rank > 5).all()


@pytest.mark.parametrize("value", [1.0, -math.inf, math.nan])
@pytest.mark.parametrize("videos", [3, 7, 400])
def test_a_constant_score_has_the_recall_of_chance(videos, value):
    found = whole(torch.full((videos, videos), value), torch.arange(videos))
    for positions in (found.to_videos, found.own, found.videos, found.own_videos, found.captions):
        for k in (1, 5, 10):
            assert metrics.recall(positions, k) == 100 * min(k, videos) / videos
        assert metrics.summary(positions)["medr"] == (videos + 1) / 2


def orders(scores: list[float]) -> list[list[int]]:
    """Return every order of the candidates that never puts a worse one first; all have the same probability."""
    return [
        p for p in map(list, permutations(range(len(scores)))) if all(scores[a] >= scores[b] for a, b in pairwise(p))
    ]


def enumerated(scores: list[float], own: list[int], k: int) -> Fraction:
    """Return the share of orders in which one of `own` is among the first k."""
    every = orders([-math.inf if math.isnan(value) else value for value in scores])
    return Fraction(sum(not set(own).isdisjoint(order[:k]) for order in every), len(every))


@pytest.mark.parametrize("seed", range(6))
def test_recall_is_the_mean_over_all_orders_of_equal_scores(seed):
    """Every order of 6 captions and 4 videos is listed, in each direction; several captions and NaN included."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.tensor([0, 0, 0, 1, 1, 3] if seed % 2 else [2, 0, 1, 0, 2, 0])
    scores = torch.randint(0, 2 + seed % 3, (6, 4), generator=generator).float()
    scores[torch.rand(6, 4, generator=generator) < 0.2] = math.nan
    found, owner = whole(scores, target), target.tolist()
    captioned = sorted(set(owner))
    columns = scores.nan_to_num(nan=-math.inf).mT.tolist()
    by_video = [[max(s for s, o in zip(columns[v], owner) if o == other) for other in captioned] for v in captioned]
    own = [[row for row, o in enumerate(owner) if o == video] for video in captioned]
    for k in range(1, 7):
        to_videos = [enumerated(row, [o], k) for row, o in zip(scores.tolist(), owner)]
        videos = [enumerated(row, [place], k) for place, row in enumerate(by_video)]
        captions = [enumerated(columns[video], rows, k) for video, rows in zip(captioned, own)]
        expected = ((found.to_videos, to_videos), (found.videos, videos), (found.captions, captions))
        for positions, chances in expected:
            assert positions.chance(k).tolist() == pytest.approx([float(chance) for chance in chances], abs=1e-15)
            assert metrics.recall(positions, k) == pytest.approx(100 * float(sum(chances)) / len(chances))
    assert [rank.first for rank in found.captions.listed()] == pytest.approx(found.captions.chance(1).tolist())


@pytest.mark.parametrize(("equal", "own"), [(0, 3), (1, 2), (7, 3), (500, 20), (10**6, 3), (10**9, 1)])
@pytest.mark.parametrize("better", [0, 4, 20])
def test_the_chance_of_many_equals_is_hypergeometric(equal, own, better):
    positions = Positions.of([Rank(better, equal, own)])
    for k in (1, 5, 10, 50):
        places = min(max(0, k - better), equal + own)
        exact = 1 - Fraction(math.comb(equal, places), math.comb(equal + own, places))
        assert positions.chance(k).item() == pytest.approx(float(exact), rel=1e-9, abs=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_videos_changes_no_metric(seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 15, (40,), generator=generator)
    scores = torch.randint(0, 3, (40, 15), generator=generator).float()
    order = torch.randperm(15, generator=generator)
    found, moved = whole(scores, target), whole(scores[:, order], order.argsort()[target])
    for name in ("to_videos", "own", "videos", "own_videos", "captions"):
        assert metrics.summary(getattr(found, name)) == metrics.summary(getattr(moved, name))


def test_without_captions_there_is_no_rank():
    found = rank(score_reader(torch.zeros(0, 3)), torch.zeros(0, dtype=torch.int64), (0, 0), (0, 3))
    assert len(found.to_videos) == len(found.videos) == 0
