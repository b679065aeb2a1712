"""The false-positive rate of equal methods, on a few draws; `make null-simulation` has many."""

from dataclasses import replace

import numpy as np
import pytest

from ctvr.orchestrator.tables.intervals import Family, differences, paired_changes
from tools import null_simulation
from tools.null_simulation import QUERIES, Situation, by_third, draw, faults, judged, run, situations

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
    assert run(replace(alone, rows=6), 300).ours.mean() > run(alone, 300).ours.mean() + 0.05
    assert not faults(replace(alone, rows=6), run(replace(alone, rows=6), 300))


def test_the_list_has_all_designs_rates_and_seeds():
    listed = list(situations())
    assert {(each.kind, each.rows) for each in listed} >= {("table", 2), ("table", 6), ("table", 13), ("gap", 1)}
    assert {each.r1 for each in listed} == set(QUERIES)
    assert {each.seed_points for each in listed} >= {(0.3,), (1.0,), (2.0,)}
    assert {each.seeds for each in listed} == {3, 5}


def test_a_rule_without_the_variance_over_seeds_is_outside_the_bounds(monkeypatch, capsys):
    listed = (Situation("seeds", 2, seed_points=(2.0,)),)
    assert null_simulation.report(400, print, listed) == 0
    ignored = null_simulation.combined
    monkeypatch.setattr(null_simulation, "combined", lambda v, df, seen, both, few: ignored(v, df, 0 * seen, both, few))
    assert null_simulation.report(400, print, listed) == 1
    assert "error outside 3.5%-6.5%" in capsys.readouterr().out


def test_the_command_fails_outside_the_bounds(monkeypatch):
    monkeypatch.setattr(null_simulation, "situations", lambda: iter(QUICK[:1]))
    monkeypatch.setattr(null_simulation, "LEAST", 0.5)
    assert null_simulation.main(["--draws", "20"]) == 1
