from __future__ import annotations

import torch

from methods.layers.diffrate import merge_ranked, schedule
from methods.layers.merge import plan_bipartite
from methods.layers.sta import survivors


def test_a_size_stays_above_zero_where_the_release_would_break():
    x = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    _, size = merge_ranked(x, x, torch.ones(1, 2, 1), 1)
    assert size.log().isfinite().all()


def test_tokens_are_compared_in_float32_whatever_the_towers_are():
    x, keys = torch.randn(2, 5, 40, 8), torch.randn(2, 5, 40, 8)

    def compare():
        ranked, size = merge_ranked(x[0], x[0], torch.ones(5, 40, 1), 20)
        return [plan_bipartite(keys[0], 9).kept, survivors(x, keys, 9), ranked, size]

    alone = compare()
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(found, wanted) for found, wanted in zip(compare(), alone))


def test_the_schedule_of_another_tower_is_the_released_one_in_proportion():
    pruned, merged = schedule(4, 17)
    assert (pruned[0], merged[-1]) == (17, 5)
    assert schedule(12, 197)[1][-1] == 49
