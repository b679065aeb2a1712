"""Intervals cover what they estimate, and the verdict follows its rule."""

import math

import pytest
import torch

from ctvr.orchestrator.migration.search import ALL, BOTH, STAY
from ctvr.orchestrator.migration.verdict import decide, difference_of, make_rows, mean_of, ratio_of

QUERIES = 400
EACH = torch.arange(QUERIES)
MAPPED, PART = ("map queries", "orthogonal"), ("age", "25")


def hits(count: int, start: int = 0) -> torch.Tensor:
    """Return values (400, 1) with `count` ones from `start`."""
    return ((start <= EACH) & (start + count > EACH)).double()[:, None]


def test_the_interval_of_independent_queries_is_that_of_clopper_and_pearson():
    found = mean_of(hits(40)[:, 0], EACH)  # of 399 draws, as the sample variance has one degree of freedom less
    assert found == pytest.approx((0.1, 0.0724, 0.1337), abs=2e-4)
    assert mean_of(hits(0)[:, 0], EACH) == pytest.approx((0, 0, 1 - 0.025 ** (1 / 400)))
    assert mean_of(hits(400)[:, 0], EACH) == pytest.approx((1, 0.025 ** (1 / 400), 1))


def test_captions_of_one_video_are_one_draw():
    videos = EACH // 4
    whole = (videos % 2).double()
    narrow, wide = mean_of(whole, EACH), mean_of(whole, videos)
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_intervals_of_means_and_ratios_cover_the_truth(rate):
    draw = torch.Generator().manual_seed(0)
    covered = torch.zeros(3)
    for _ in range(300):
        group = torch.arange(400) // 2
        level = torch.rand(200, generator=draw)[group]
        both = ((level + torch.rand(400, generator=draw)) / 2 < _level(rate)).double()
        kept = both * (torch.rand(400, generator=draw) < 0.9)
        for place, (found, truth) in enumerate(
            [
                (mean_of(both, group), rate),
                (ratio_of(kept, both, group), 0.9),
                (difference_of(kept, both, group), -0.1 * rate),
            ]
        ):
            covered[place] += found.low <= truth <= found.high
    assert (covered >= 0.92 * 300).all(), covered


def _level(rate: float) -> float:
    """Return the quantile of the mean of two uniform numbers."""
    return math.sqrt(rate / 2) if rate <= 0.5 else 1 - math.sqrt((1 - rate) / 2)


def test_two_equal_lists_have_a_ratio_with_a_width_and_an_empty_reference_has_none():
    same = ratio_of(hits(200)[:, 0], hits(200)[:, 0], EACH)
    assert same == pytest.approx((1, 1 - 1.96 / 200, 1 + 1.96 / 200))
    assert math.isnan(ratio_of(hits(3)[:, 0], hits(0)[:, 0], EACH).low)


def verdict(metric: str = "R@10", **counts: int) -> tuple[str, tuple[str, str], int]:
    names = {"stay": STAY, "both": BOTH, "all": ALL, "mapped": MAPPED, "part": PART}
    found = {names[name]: hits(count) for name, count in {"stay": 300, "both": 300, **counts}.items()}
    made = decide(found, EACH, [MAPPED, PART], 0.05, metric)
    return made.word, made.way, len(made.remarks)


def test_the_cheapest_way_with_a_lower_end_within_the_tolerance_is_chosen():
    assert verdict(all=300, mapped=298, part=300)[:2] == ("map queries", MAPPED)
    assert verdict(all=300, mapped=250, part=298)[:2] == ("re-encode", PART)
    assert verdict(all=300, mapped=250, part=260)[:2] == ("re-encode", ALL)


def test_a_value_within_the_tolerance_does_not_suffice_and_is_remarked():
    assert verdict(all=300, mapped=287, part=10) == ("re-encode", ALL, 2)
    assert verdict(all=300, mapped=200, part=10) == ("re-encode", ALL, 1)


def test_staying_is_chosen_only_if_the_new_embedder_is_worse_by_more_than_the_tolerance():
    assert verdict(stay=300, all=200, mapped=200, part=200)[:2] == ("stay", STAY)
    assert verdict(stay=300, all=283, mapped=283, part=283)[:2] == ("map queries", MAPPED)
    assert verdict(stay=300, all=300, mapped=300, part=300)[:2] == ("map queries", MAPPED)


def test_both_are_chosen_only_if_the_new_embedder_is_worse_and_they_find_more_than_staying():
    assert verdict(stay=300, both=360, all=200, mapped=200, part=200)[:2] == ("both", BOTH)
    word, way, remarks = verdict(stay=200, both=360, all=300, mapped=100, part=100)
    assert (word, way, remarks) == ("re-encode", ALL, 2)


def test_overlap_with_the_new_embedder_never_says_that_staying_is_better():
    assert verdict("overlap@10", stay=400, all=300, mapped=100, part=100) == ("re-encode", ALL, 0)


def test_rows_count_the_items_to_encode():
    found = {way: hits(200) for way in (STAY, BOTH, MAPPED, PART, ALL)}
    rows = {row.way: row.items for row in make_rows(found, EACH, 1001)}
    assert rows == {STAY: 0, BOTH: 1001, MAPPED: 0, PART: 250, ALL: 1001}
