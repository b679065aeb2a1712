"""A challenger replaces the recommended settings; the differences that a comparison can detect."""

import math

import numpy as np
import pytest

from ctvr.orchestrator.on_ray.plan import GAIN
from ctvr.orchestrator.sweeps.comparison import (
    CHOICE,
    GAINED,
    RECOMMENDED,
    ConfirmationResult,
    compare_candidates,
    gain_notes,
    minimum_detectable_effect,
)
from ctvr.orchestrator.tables.intervals import compare_over_seeds
from ctvr.orchestrator.tables.multiple_comparisons import Family
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tracking.run_record import RunRecord

QUERIES = 200


def run(name: str, seed: int, **more: object) -> RunRecord:
    settings = {"method": "clip4clip", "stream": "x", "seed": seed, "optim.weight_decay": 0.1 * len(name)}
    tags = {"ctvr.complete": "true", **{key.replace("_", "."): str(value) for key, value in more.items()}}
    return RunRecord(f"{name}-{seed}", name, settings, {"bwf": [(2, float(more.get("bwf", 0)))]}, tags, "", "", seed)


def found(share: float, seed: int, row: int = 0) -> Ranks:
    """Return ranks of which a share is 1. Rows find different queries, seeds of a row mostly the same ones."""
    draws = np.random.default_rng(row).random(QUERIES)
    draws = draws + 0.02 * np.random.default_rng(100 + seed).standard_normal(QUERIES)
    return Ranks({f"v{i}#0": 1.0 if draw < share else 2.0 for i, draw in enumerate(draws)}, {})


def verdict(
    rule: tuple[str, str] = (GAIN, "max"), order: tuple[str, ...] = ("a", "bb"), **shares: float
) -> ConfirmationResult:
    groups = {name: [run(name, seed) for seed in (1001, 1002, 1003)] for name in shares}
    runs = [(name, seed, each) for name, group in groups.items() for seed, each in enumerate(group)]
    ranks = {each.run_id: found(shares[name], seed, int(name != RECOMMENDED)) for name, seed, each in runs}
    return compare_candidates("s", groups, ranks, rule, order)


def test_a_challenger_that_is_clearly_better_takes_the_place():
    made = verdict(recommended=0.3, a=0.5)
    assert made.is_confirmed
    assert made.against.value == pytest.approx(20, abs=8)
    assert made.chosen.optim.weight_decay == pytest.approx(0.1)
    assert (made.seeds, made.challengers, made.trial) == (3, 1, "a")
    assert "; confirmed (" in made.text
    assert made.tags(True)["ctvr.note"].startswith("confirmed; difference from them")


@pytest.mark.parametrize("share", [0.3, 0.31, 0.1])
def test_without_a_better_challenger_the_recommended_settings_stay(share):
    made = verdict(recommended=0.3, a=share)
    assert not made.is_confirmed
    assert made.chosen is made.recommended
    assert "not confirmed, so the recommended settings are kept" in made.text
    assert made.tags(True)["ctvr.note"].startswith("NOT confirmed")
    assert made.tags(False)[CHOICE] == RECOMMENDED


def test_best_challenger_wins_and_ties_go_to_the_first():
    assert verdict(recommended=0.3, a=0.45, bb=0.6).trial == "bb"
    assert verdict(recommended=0.3, a=0.5, bb=0.5, order=("bb", "a")).trial == "bb"
    assert verdict(recommended=0.3, a=0.5, bb=0.5).trial == "a"
    assert verdict(recommended=0.3, a=0.2, bb=0.25).trial == "bb"  # what stands in the table as not confirmed


def test_p_and_interval_hold_for_the_best_of_all_challengers():
    alone = verdict(recommended=0.3, a=0.36).against
    same = verdict(recommended=0.3, a=0.36, bb=0.36)
    assert same.against.p > alone.p
    assert (same.against.p < 0.05) == (same.against.low > 0)
    assert "for the best of 2 challengers" in same.text


def test_another_metric_is_compared_over_seeds_and_in_its_own_direction():
    def lost(name: str, values: tuple[float, ...]) -> list[RunRecord]:
        return [run(name, seed, bwf=value) for seed, value in enumerate(values)]

    groups = {RECOMMENDED: lost(RECOMMENDED, (5.0, 5.1, 4.9)), "a": lost("a", (1.0, 1.1, 0.9))}
    assert compare_candidates("s", groups, {}, ("bwf", "min"), ["a"]).is_confirmed
    assert not compare_candidates("s", groups, {}, ("bwf", "max"), ["a"]).is_confirmed
    assert compare_over_seeds([[1.0], [2.0]])[1].p == 1.0  # one seed is never significant
    assert compare_over_seeds([[1.0, 1.0], [2.0, 2.0]])[1].detectable == np.inf  # so no effect is detectable
    blind = compare_candidates(
        "s", {RECOMMENDED: lost(RECOMMENDED, (5.0, 5.0)), "a": lost("a", (1.0, 1.0))}, {}, ("bwf", "min"), ["a"]
    )
    assert "the detectable difference is unknown" in blind.text
    assert blind.on_validation.startswith("-4.00 [interval not known] on validation")


@pytest.mark.parametrize("df", [3.0, 8.0, 1e6])
def test_the_detectable_difference_is_found_in_four_of_five_cases(df):
    """In a simulation, a true difference of that size is detected in about 80 % of draws."""
    chance = np.random.default_rng(1)
    known = Family().with_interval(1.0, 2.0, df)
    error = 2.0 * np.sqrt(chance.chisquare(df, 40000) / df)
    caught = np.mean(known.detectable + 2.0 * chance.standard_normal(40000) > Family().quantile(df) * error)
    assert caught == pytest.approx(0.8, abs=0.03)


def test_few_videos_show_large_differences_only():
    assert minimum_detectable_effect(160, 160) == pytest.approx(2.80 * 100 * math.sqrt(0.2 / 160), rel=0.01)
    assert minimum_detectable_effect(3200, 160) == minimum_detectable_effect(
        160, 160
    )  # captions of one video are one draw
    assert minimum_detectable_effect(640, 640) == pytest.approx(minimum_detectable_effect(160, 160) / 2)
    assert minimum_detectable_effect(0, 0) == math.inf


def test_the_gain_of_a_search_is_a_note_of_the_table():
    def rows(choice: str, name: str) -> list[RunRecord]:
        return [run(name, seed, ctvr_choice=choice, ctvr_gained="3.00 on validation videos") for seed in (1, 2)]

    runs = [*rows(RECOMMENDED, "a"), *rows("searched", "bb")]
    ranks = {each.run_id: found(0.5 if each.tags[CHOICE] == "searched" else 0.3, 1) for each in runs}
    (said,) = gain_notes(runs, ranks)
    assert runs[0].tags[GAINED] in said
    assert "on test videos over 2 seeds" in said
    assert gain_notes(runs[:2], ranks) == gain_notes([], {}) == []
