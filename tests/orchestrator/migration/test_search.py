"""Every way's ranks and neighbors equal those of a plain search over all scores, with ties and several blocks."""

import pytest
import torch

from ctvr.orchestrator.migration import search
from ctvr.orchestrator.migration.maps import FeatureMap, fit_maps
from ctvr.orchestrator.migration.search import ALL, BOTH, STAY, Index, Measured, measure
from tests.orchestrator.migration.pairs import make_pair

COUNT = 120


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(search, "BLOCK", 50)


def case(has_targets: bool, shuffle: bool = True) -> tuple[Index, Measured]:
    pair = make_pair(0, count=COUNT, old=16, new=12, noise=0.3)
    old, new = torch.from_numpy(pair.old), torch.from_numpy(pair.new)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)) if shuffle else torch.arange(COUNT)
    index = Index(old, new[order.argsort()].clone(), (torch.arange(COUNT), order))
    index.new[order] = new
    target = torch.arange(0, COUNT, 3)
    texts = [torch.from_numpy(each) for each in (pair.new_texts, pair.old_texts)]
    asked = [each[target] for each in (texts if has_targets else (new, old))]
    first = {("age", 25): torch.arange(COUNT) < 30}
    spread = torch.rand(2, len(target), generator=torch.Generator().manual_seed(2)) + 0.1
    maps = fit_maps(new, old), fit_maps(old, new)
    return index, Measured(asked[0], asked[1], target, target, has_targets, *maps, "orthogonal", spread, first)


def plain_scores(index: Index, queries: Measured) -> dict:
    old, new = index.old[index.rows[0]], index.new[index.rows[1]]
    stored, fresh = queries.old @ old.mT, queries.new @ new.mT
    mapped = queries.new @ queries.index_maps["orthogonal"].apply(old).mT
    z_old, z_new = stored / queries.spread[0][:, None], fresh / queries.spread[1][:, None]
    return {
        STAY: stored,
        ALL: fresh,
        BOTH: z_old + z_new,
        ("map queries", "low_rank"): queries.query_maps["low_rank"].apply(queries.new) @ old.mT,
        ("map index", "orthogonal"): mapped,
        ("age", "25"): torch.where(torch.arange(COUNT) < 30, fresh, mapped),
    }


def test_recall_of_each_way_is_that_of_all_its_scores():
    index, queries = case(has_targets=True)
    found = measure(index, queries)
    for way, scores in plain_scores(index, queries).items():
        own = scores[torch.arange(len(scores)), queries.target]
        rank = (scores > own[:, None]).sum(dim=1) + 1
        expected = torch.stack([(rank <= k).double() for k in (1, 5, 10)], dim=1)
        torch.testing.assert_close(found[way], expected, msg=str(way))
    assert 0.1 < found[STAY].mean() < 0.95


def test_overlap_of_each_way_counts_the_new_embedders_neighbours_and_not_the_item_itself():
    index, queries = case(has_targets=False)
    found = measure(index, queries)
    scores = plain_scores(index, queries)
    for each in scores.values():
        each[torch.arange(len(each)), queries.target] = -torch.inf
    wanted = scores[ALL].topk(10, dim=1).indices
    for way, each in scores.items():
        items = each.topk(10, dim=1).indices
        shares = [len(set(a.tolist()) & set(b.tolist())) / 10 for a, b in zip(items, wanted)]
        torch.testing.assert_close(found[way][:, 0], torch.tensor(shares, dtype=torch.float64), msg=str(way))
    assert found[ALL].min() == 1


def test_equal_items_share_the_chance_of_a_tie():
    vectors = torch.nn.functional.normalize(torch.randn(110, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    vectors[100] = vectors[3]  # in another block
    identity = {"orthogonal": FeatureMap("orthogonal", {"matrix": torch.eye(8), "shift": torch.zeros(8)})}
    rows = torch.arange(110)
    target = torch.tensor([3, 4])
    queries = Measured(vectors[target], None, target, target, True, identity, identity, "orthogonal")
    found = measure(Index(vectors, vectors, (rows, rows)), queries)
    assert set(found) == {ALL, ("map queries", "orthogonal"), ("map index", "orthogonal")}
    for values in found.values():
        assert values.tolist() == [[0.5, 1, 1], [1, 1, 1]]


def test_traffic_counts_items_among_the_ten_nearest():
    vectors = torch.eye(60)
    rows = torch.arange(60)
    hits = search.count_hits(vectors[[7, 7, 51]] + 0.01 * torch.arange(60), Index(vectors, vectors, (rows, rows)))
    assert (hits.sum(), hits[7], hits[51], hits[59]) == (30, 2, 3, 3)


def test_the_first_share_of_an_order_is_rounded_down():
    masks = search.first_items(torch.tensor([2, 0, 1]), (34, 50, 100))
    assert [mask.tolist() for mask in masks.values()] == [[False, False, True], [False, False, True], [True] * 3]


def test_the_predicted_loss_is_that_of_the_nearest_known_items():
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1], [0.1, 1.0]]).repeat(60, 1), dim=1)
    rows = torch.arange(120)
    known = torch.eye(2).repeat(20, 1)
    found = search.predicted_loss(Index(vectors, vectors, (rows, rows)), known, torch.tensor([0.1, 0.9]).repeat(20))
    torch.testing.assert_close(found, torch.tensor([0.1, 0.9]).repeat(60))
