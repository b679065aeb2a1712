"""Positions of single queries: their mean rank, their chance, and what older runs kept."""

import json

import pytest

from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.streams.query_rank import Rank, read_all


def test_a_tie_counts_half_in_the_mean_rank_and_by_its_chance_in_first_place():
    assert (Rank(0, 0).mean, Rank(0, 0).first) == (1, 1)
    assert (Rank(0, 3).mean, Rank(0, 3).first) == (2.5, 0.25)
    assert Rank(0, 3, 2).first == pytest.approx(0.4)
    assert Rank(2, 3, 2).first == 0


@pytest.mark.parametrize(("kept", "rank"), [(1.0, Rank(0, 0)), (1.5, Rank(0, 1)), (7, Rank(6, 0)), (7.5, Rank(6, 1))])
def test_a_mean_rank_of_an_older_run_is_read_as_one_equal_or_none(kept, rank):
    assert Rank.read(kept) == rank
    assert rank.mean == kept


def test_the_state_of_a_run_keeps_the_counts_through_json():
    ranks = {"v0#0": Rank(0, 3, 2), "v1#0": Rank(4, 0)}
    state = RunState(ranks=ranks, v2t={"v0": Rank(1, 2)}, aged_ranks={"50": ranks})
    again = RunState(**json.loads(json.dumps(vars(state))))
    assert again == state
    assert again.ranks["v0#0"].first == pytest.approx(0.4)
    assert RunState(ranks={"v0#0": 1.5}).ranks == read_all({"v0#0": Rank(0, 1)})
