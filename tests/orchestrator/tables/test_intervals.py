"""Differences of rows: variances by hand, quantiles compared with scipy, and p values that agree with intervals."""

import math

import numpy as np
import pytest
from scipy import stats

from ctvr.orchestrator.tables.intervals import (
    OUTLIER_PROBABILITY,
    PRIOR,
    compare_over_seeds,
    differences,
    of_seeds,
    paired_changes,
)
from ctvr.orchestrator.tables.multiple_comparisons import Family, combined
from ctvr.orchestrator.tables.table import Difference
from tests.refusing import refused
from tools.null_simulation import Situation, hits


def difference(a: object, b: object, videos: object = None, tasks: object = None, **more: object) -> Difference:
    """Return R@1 of b minus R@1 of a."""
    return differences([a, b], 0, videos, tasks, **more)[1]  # type: ignore[arg-type,list-item]


def drawn(rows: int, queries: int, points: tuple[float, ...], seed: int) -> list[np.ndarray]:
    """Return chances (3 seeds, Q), 0 or 1, of rows of equal expected R@1."""
    situation = Situation("", rows, 3, 25.0, points, queries)
    return list(hits(situation, 1, np.random.default_rng(seed))[0].astype(float))


def untrained(a: object, b: object, videos: object = None, tasks: object = None) -> Difference:
    return difference(a, b, videos, tasks, fixed=(True, True))


def test_a_real_difference_is_seen_and_its_interval_holds_it():
    rng = np.random.default_rng(1)
    a, b = drawn(2, 500, (0.5,), 1)
    b = np.where(rng.random(b.shape) < 0.3, 1.0, b)
    found = difference(a, b)
    assert found.p < 0.001
    assert found.value == pytest.approx(100 * (b.mean() - a.mean()))
    assert found.low < found.value < found.high
    assert found.turned().value == -found.value


def test_equals_are_equal_and_certainty_is_certain():
    chances = np.random.default_rng(0).choice([0.0, 0.25, 0.5, 1.0], 400)
    assert untrained(chances, chances).p == 1.0
    assert untrained(np.full(9, 1), np.full(9, 0)).p == 0.0


def test_rows_that_train_nothing_have_a_paired_t_test_over_videos():
    a, b = np.array([1, 1, 0, 1, 0, 1, 0.5, 1]), np.array([1, 0, 0, 0, 0.5, 1, 0, 1])
    d = 100.0 * (b - a)
    found = untrained(a, b)
    expected = stats.ttest_1samp(d, 0.0)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.value, found.low, found.high) == pytest.approx((d.mean(), interval.low, interval.high))


@pytest.mark.parametrize("seeds", [1, 3])
def test_repeated_captions_do_not_narrow_the_interval(seeds):
    rng = np.random.default_rng(0)
    a, b = rng.choice([0.0, 0.5, 1.0], (2, seeds, 50))
    once = differences([a, b], 0, np.arange(50), fixed=(seeds == 1,) * 2)[1]
    often = differences([np.repeat(r, 6, axis=1) for r in (a, b)], 0, np.arange(50).repeat(6), fixed=(seeds == 1,) * 2)[
        1
    ]
    assert math.isfinite(once.low)
    assert (often.value, often.low, often.high, often.p) == pytest.approx((once.value, once.low, once.high, once.p))


def test_trained_rows_with_one_seed_each_have_no_interval():
    found = difference(np.full(9, 1), np.full(9, 0))
    assert (found.value, found.low, found.high, found.p) == (-100.0, -math.inf, math.inf, 1.0)
    assert "interval not known" in str(found)


def _crossed(rows: list[np.ndarray]) -> tuple[float, list[float], list[float]]:
    """Compute variances of videos, of R@1 between seeds, and of the part that is new with both, by loops."""
    d, queries, seeds, new = rows[1].mean(0) - rows[0].mean(0), rows[0].shape[1], [], []
    for row in rows:
        seeds.append(float(np.var([each.mean() for each in row], ddof=1)))
        rest = row - row.mean(0) - row.mean(1, keepdims=True) + row.mean()
        new.append(float((rest**2).sum()) / (len(row) - 1) / (queries - 1) / queries)
    return float(np.var(d, ddof=1)) / queries, seeds, new


@pytest.mark.parametrize("rows", [2, 6])
def test_the_variance_crosses_seeds_and_videos_and_is_moderated_toward_the_mean(rows):
    ranks = drawn(rows, 400, (4.0, 1.0, 1.0), 5)
    videos, seeds, new = _crossed([100.0 * row for row in ranks])
    others = [np.mean(np.delete(seeds, row)) for row in range(rows)]
    usual = stats.f.sf(np.array(seeds) / others, 2, 2 * (rows - 1)) / OUTLIER_PROBABILITY
    keep = 2 / (2 + PRIOR * np.minimum(1, usual))
    assert rows == 2 or keep[0] > 2 / (2 + PRIOR)  # four times the sd of the others
    weights = np.full(rows, (2 - keep[:2].sum()) / rows)
    weights[:2] += keep[:2]
    seen, both = float(weights @ seeds) / 3, float(weights @ new) / 3
    assert seen > both  # otherwise the seeds would add nothing
    moderated = keep * np.array(seeds) + (1 - keep) * np.mean(seeds)
    few = min(2 * rows, seen**2 / float(((weights * moderated / 3) ** 2 / 2).sum()))
    used = np.maximum(0, seen * np.random.default_rng(0).chisquare(few, 1_000_000) / few - both)
    variance = videos + seen - both
    df = 2 * variance**2 / (2 * videos**2 / 399 + used.var())
    found = differences(ranks, 0)[1]
    half = (stats.studentized_range.ppf(0.95, rows, df) / math.sqrt(2)) * math.sqrt(variance)
    assert found.high - found.value == pytest.approx(half, rel=3e-3)


@pytest.mark.parametrize("rows", [2, 3, 6, 13])
def test_the_width_is_continuous_and_does_not_fall_as_the_variance_of_one_row_rises(rows):
    """A row that varies more than the others is moderated less, so that its own variance decides in the end."""
    own = np.linspace(1, 100, 1000)
    spread = of_seeds([(3, own, 0.0 * own), *[(3, 1.0 + 0 * own, 0.0 * own)] * (rows - 1)], None)
    variance, df = combined(0.5, 399, *spread.of(0))
    width = np.array([Family().quantile(each) for each in df]) * np.sqrt(variance)
    assert (np.diff(width) > 0).all()
    assert (width[1:] / width[:-1]).max() < 1.05
    seen, _, few = (each[-1] for each in spread.of(0))
    assert 0.9 < seen / (own[-1] / 3) < 1
    assert 2 <= few < 2.5


@pytest.mark.parametrize(("rows", "few"), [(2, 2.0), (2, 4.0), (2, 26.0), (13, 16.0), (13, 26.0)])
@pytest.mark.parametrize("both", [0.0, 0.1, 0.5, 1.0])
def test_the_width_is_continuous_and_does_not_fall_as_the_variance_over_seeds_rises(rows, few, both):
    found = [Family(rows).judge(2.0, 1.0, 399, seen, both, few) for seen in np.linspace(0, 3, 100)]
    width = np.array([each.high - each.low for each in found])
    steps = width[1:] / width[:-1]
    assert steps.min() > 1 - 1e-6
    assert steps.max() < 1.05
    assert width[0] == pytest.approx(2 * Family(rows).quantile(399), rel=1e-6)  # nothing varies over seeds
    detectable = [each.detectable - each.high + each.value for each in found]  # the same for the detectable difference
    assert np.diff(detectable).min() > -1e-6


def test_only_seeds_have_the_degrees_of_the_seeds():
    variance, df = combined(0.0, 399, 2.0, 0.0, np.array([2.0, 7.5]))
    assert (variance, df) == (pytest.approx(2.0), pytest.approx([2.0, 7.5]))


def test_a_gap_takes_part_of_its_variance_from_the_page():
    rows, videos = drawn(8, 300, (1.5,), 3), np.arange(300)
    pairs = list(zip(rows[::2], rows[1::2]))
    (alone,) = paired_changes(pairs[:1], videos)
    page = paired_changes([*pairs, (rows[0], rows[0])], videos)
    assert alone.value == page[0].value
    assert (page[-1].low, page[-1].high, page[-1].p) == (0.0, 0.0, 1.0)  # nothing changed
    assert page[0] == paired_changes(pairs, videos)[0]  # and that row does not count
    (single,) = paired_changes([(pairs[0][0][:1], pairs[0][1][:1])], videos)
    one, *_ = paired_changes([(pairs[0][0][:1], pairs[0][1][:1]), *pairs[1:]], videos)
    assert one.high - one.low > single.high - single.low


def test_single_seed_borrows_the_variance_of_other_rows():
    a, b = drawn(2, 2000, (3.0,), 0)
    width = {fixed: difference(a[:1], b, fixed=(fixed, False)) for fixed in (False, True)}
    assert width[False].high - width[False].low > width[True].high - width[True].low


def test_orders_are_paired_and_their_number_gives_the_freedom():
    """Similar seeds within an order add no information: the spread of paired differences counts."""
    chance = np.random.default_rng(0)
    shares = np.array([0.2, 0.5, 0.3])
    a, b = (
        np.array([chance.permutation(np.where(np.arange(4000) < round(share * 4000), 1, 0)) for share in each])
        for each in (shares, shares + 0.1)
    )
    plain = difference(a, b, orders=("012", "012"))
    assert plain.value == pytest.approx(10)
    assert plain.p < 0.001  # the effect of an order is common to both rows
    turned = difference(a, b[::-1], orders=("012", "210"))
    assert (turned.value, turned.low, turned.p) == pytest.approx((plain.value, plain.low, plain.p))
    doubled = difference(np.repeat(a, 2, axis=0), np.repeat(b, 2, axis=0), orders=("001122", "001122"))
    assert (doubled.low, doubled.p) == pytest.approx((plain.low, plain.p))
    with pytest.raises(ValueError, match="different orders"):
        difference(a, b[:2], orders=("012", "01"))


def test_an_effect_of_the_order_on_one_row_widens_the_interval():
    rng = np.random.default_rng(2)
    rows = [np.where(rng.random((5, 2000)) < 0.3, 1, 0) for _ in range(4)]
    orders = ["01234"] * 4
    quiet = differences(rows, 0, orders=orders)[1]
    rows[1] = np.array([np.where(rng.random(2000) < share, 1, 0) for share in (0.1, 0.5, 0.2, 0.4, 0.3)])
    moved = differences(rows, 0, orders=orders)[1]
    assert moved.high - moved.low > 3 * (quiet.high - quiet.low)


@pytest.mark.parametrize(("rows", "df"), [(3, 4.0), (6, 10.0), (12, 200.0)])
def test_p_and_interval_of_a_table_are_tukeys(rows, df):
    found = Family(rows).with_interval(-7.0, 2.0, df)
    assert found.p == pytest.approx(stats.studentized_range.sf(3.5 * math.sqrt(2), rows, df), abs=1e-5)
    half = stats.studentized_range.ppf(0.95, rows, df) / math.sqrt(2) * 2.0
    assert (found.low, found.high) == pytest.approx((-7.0 - half, -7.0 + half), abs=1e-4)


def test_p_and_interval_of_two_rows_are_students():
    found = Family().with_interval(3.0, 1.5, 7.5)
    assert found.p == pytest.approx(2 * stats.t.sf(2.0, 7.5))
    assert found.low == pytest.approx(3.0 - 1.5 * stats.t.isf(0.025, 7.5))


@pytest.mark.parametrize("df", [1.0, 2.3, 8.0, 500.0])
@pytest.mark.parametrize("family", [Family(rows, chosen) for rows in (2, 3, 12) for chosen in (True, False)])
def test_p_is_below_5_percent_exactly_where_the_interval_excludes_0(family, df):
    edge = 2.0 * family.quantile(df)
    for value in (*np.linspace(0.1, 3 * edge, 60), 0.9999 * edge, 1.0001 * edge):
        found = family.with_interval(value, 2.0, df)
        assert (found.p < 0.05) == (found.low > 0), value


def test_best_of_rows_against_a_named_row_errs_in_5_percent():
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((100_000, 4)) / np.sqrt(rng.chisquare(6, (100_000, 1)) / 6)
    best = (normal[:, 1:] - normal[:, :1]).max(axis=1) / math.sqrt(2)
    assert np.mean(np.abs(best) > Family(4, is_chosen=False).quantile(6)) == pytest.approx(0.05, abs=0.003)


def test_a_metric_of_one_value_a_seed_has_a_t_test_between_welchs_and_students():
    a, b = [30.0, 31.0, 33.0], [20.0, 20.5, 20.0]
    found = compare_over_seeds([a, b])[1]
    welch, student = (stats.ttest_ind(b, a, equal_var=equal) for equal in (False, True))
    assert student.pvalue < found.p < welch.pvalue
    assert found.high - found.low < np.diff(welch.confidence_interval(0.95))[0]
    assert compare_over_seeds([[1.0, 1.0], [2.0, 2.0]])[1].p == 1.0
    assert compare_over_seeds([[1.0, 1.1], [math.nan, 2.0]])[1].p == 1.0


def test_tasks_weigh_alike():
    large, small = np.array([1] * 80 + [0] * 10), np.array([0] * 80 + [1] * 10)
    assert untrained(large, small, tasks=[0] * 80 + [1] * 10).value == 0.0  # each wins one task
    assert untrained(large, small).value == pytest.approx(-100 * 70 / 90)
    with pytest.raises(ValueError, match="a task has only one video"):
        untrained([1, 1], [0, 0], videos=["a", "a"])


@pytest.mark.parametrize(
    ("chances", "said"),
    [([1, 0, 0.5], "2 and 3 queries"), *(([1, rank], "must be within 0 and 1") for rank in (2, -1, math.nan))],
)
def test_only_chances_of_the_same_queries_are_paired(chances, said):
    refused(lambda: difference(chances, [1, 0]), said, kind=ValueError)
