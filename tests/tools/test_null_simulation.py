"""The false-positive rate of equal methods, on a few draws; `make null-simulation` has many."""

from dataclasses import replace

import numpy as np
import pytest

from ctvr.orchestrator.tables.intervals import differences, paired_changes
from ctvr.orchestrator.tables.multiple_comparisons import Family
from tools import null_simulation
from tools.null_designs import DESIGNS, Design
from tools.null_simulation import (
    QUERIES,
    TOLERANCE,
    Measure,
    Situation,
    by_third,
    draw,
    judged,
    measures,
    run,
    situations,
)

QUICK = [
    Situation("table", 6, queries=200, seed_points=(2.0,)),
    Situation("claim", 6, queries=200, kind="claim"),
    Situation("gap", 6, queries=200, kind="gap", r1=25.0),
    Situation("confirmation", 3, queries=200, kind="confirmation", r1=25.0),
    Situation("ties", 2, queries=200, tied=0.5),
]


@pytest.mark.parametrize("situation", QUICK, ids=lambda each: each.name)
def test_equal_methods_are_called_different_in_about_5_percent(situation):
    tested = run(situation, 800, seed=1)
    assert 0.02 <= tested.ours.mean() <= 0.08
    assert (by_third(tested, tested.ours) <= by_third(tested, tested.ordinary) + 0.02).all()


@pytest.mark.parametrize("situation", QUICK[:4], ids=lambda each: each.name)
def test_the_simulation_judges_as_tables_do(situation):
    rng = np.random.default_rng(2)
    found = draw(replace(situation, queries=150), 20, rng)
    ours = judged(replace(situation, queries=150), found).ours
    for each, is_different in zip(found, ours):
        if situation.kind == "gap":
            pairs = [(1.0 * (row < 0), 1.0 * (row > 0)) for row in each]
            seen = paired_changes(pairs, np.arange(150))[:1]
        else:
            family = {"table": Family(6), "claim": Family(2), "confirmation": Family(3, is_chosen=False)}
            seen = differences(list(each), 0, family=family[situation.kind])[1:]
            seen = seen[:1] if situation.kind == "claim" else seen
        if situation.kind == "confirmation":
            seen = [max(seen, key=lambda difference: difference.value)]
        assert any(difference.p < 0.05 for difference in seen) == is_different


def test_a_claim_profits_from_the_other_rows_of_its_page():
    alone = Situation("alone", 2, kind="claim", better=3.0, seed_points=(0.8,))
    assert run(replace(alone, rows=6), 300).ours.mean() > run(alone, 300).ours.mean() + 0.02
    (power,) = measures(replace(alone, rows=6), 300)
    assert power.is_within({})


def test_the_list_has_all_designs_rates_and_seeds():
    listed = [each for each in situations() if isinstance(each, Situation)]
    assert {(each.kind, each.rows) for each in listed} >= {("table", 2), ("table", 6), ("table", 13), ("gap", 1)}
    assert {each.r1 for each in listed} == set(QUERIES)
    assert {each.seed_points for each in listed} >= {(0.3,), (1.0,), (2.0,)}
    assert {each.seeds for each in listed} == {3, 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "design",
    [each for each in DESIGNS if each.name.startswith(("2 rows, 1 and 3", "2 rows, 20", "3 rows, 5 orders"))]
    + [Design("other metric", (3, 3, 3), videos=0, is_search=True)],
    ids=lambda each: each.name,
)
def test_unbalanced_designs_call_equal_methods_different_in_about_5_percent(design):
    (error,) = measures(design, 300)
    assert 0.01 <= error.figure <= 0.1


def test_each_exception_is_a_listed_situation_with_a_reason():
    names = {each.name for each in situations()}
    assert len(names) == len(list(situations()))
    assert set(null_simulation.exceptions()) <= names
    lines = null_simulation.EXCEPTIONS.read_text(encoding="utf-8").splitlines()[1:]
    assert all(line.split("\t")[3] for line in lines)
    assert len({tuple(line.split("\t")[:2]) for line in lines}) == len(lines)


def test_an_exception_permits_only_the_neighbourhood_of_its_figure():
    error = Measure("error", 0.02, 0.035, 0.065)
    assert not error.is_within({})
    assert not error.is_within({"power": 0.02})
    assert error.is_within({"error": 0.02 + TOLERANCE})
    assert not error.is_within({"error": 0.021 + TOLERANCE})
    assert Measure("error", 0.05, 0.035, 0.065).is_within({"error": 0.9})  # within the bounds


def test_a_rule_without_the_variance_over_seeds_is_outside_the_bounds(monkeypatch, capsys):
    listed = (Situation("seeds", 2, seed_points=(2.0,)),)
    assert null_simulation.report(400, print, listed) == 0
    ignored = null_simulation.combined
    monkeypatch.setattr(null_simulation, "combined", lambda v, df, seen, both, few: ignored(v, df, 0 * seen, both, few))
    assert null_simulation.report(400, print, listed) == 1
    assert "OUTSIDE: error" in capsys.readouterr().out


def test_a_jump_in_the_width_is_outside_the_bounds(monkeypatch, capsys):
    rule = null_simulation.combined

    def jumping(of_videos, freedom, seen, both, few):
        variance, df = rule(of_videos, freedom, seen, both, few)
        return variance, np.where(np.asarray(seen) > both, np.minimum(df, few), freedom)  # the seeds' degrees at once

    monkeypatch.setattr(null_simulation, "situations", lambda: iter(()))
    assert null_simulation.main([]) == 0
    monkeypatch.setattr(null_simulation, "combined", jumping)
    assert null_simulation.main([]) == 1
    assert "width jumps or falls" in capsys.readouterr().out


@pytest.mark.parametrize(("figure", "status"), [(0.034, 1), (0.036, 0), (0.064, 0), (0.066, 1)])
def test_the_command_fails_outside_the_bounds(monkeypatch, figure, status):
    monkeypatch.setattr(null_simulation.null_designs, "run", lambda design, draws: np.array([figure]))
    monkeypatch.setattr(null_simulation, "situations", lambda: iter([Design("one", (0, 0))]))
    assert null_simulation.main([]) == status
