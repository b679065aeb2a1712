"""The false-positive rate of equal methods, on a few draws; `make null-simulation` has many."""

import numpy as np
import pytest

from ctvr.orchestrator.tables.intervals import differences
from tools import null_simulation
from tools.null_simulation import Situation, draw, false_positives

CAPTIONS = Situation("captions", videos=60, captions=10, seeds=(0, 0))
SEEDS = Situation("seeds", videos=200, seed_points=(2.0,))
BOTH = Situation("both", videos=60, captions=10)
ORDERS = Situation("orders", 400, 1, (2, 2), (0.7,), 5, 0.0, (3.0,))
TABLE = Situation("six rows", videos=200, seeds=(3,) * 6, seed_points=(2.0, 0.5))
SEARCH = Situation("confirmation", videos=200, seeds=(3, 3, 3), is_search=True)


@pytest.mark.parametrize(
    "situation", [CAPTIONS, SEEDS, BOTH, ORDERS, TABLE, SEARCH], ids=lambda situation: situation.name
)
def test_equal_methods_are_called_different_in_about_5_percent(situation):
    assert 0.02 <= false_positives(situation, 250, seed=1) <= 0.075


def test_simulation_catches_a_comparison_without_a_variance_part():
    rng = np.random.default_rng(0)
    forgot = np.zeros(3)
    for _ in range(60):
        rows, _ = draw(CAPTIONS, rng)
        forgot[0] += differences(rows, 0, fixed=(True, True))[1].p < 0.05
        rows, _ = draw(SEEDS, rng)
        forgot[1] += differences([row.reshape(1, -1) for row in rows], 0, fixed=(True, True))[1].p < 0.05
        rows, _ = draw(ORDERS, rng)
        forgot[2] += differences([row.reshape(1, -1) for row in rows], 0, fixed=(True, True))[1].p < 0.05
    assert forgot.min() > 7


def test_the_simulation_ends_with_its_count_and_fails_outside_the_band(monkeypatch, capsys):
    monkeypatch.setattr(null_simulation, "SITUATIONS", (CAPTIONS,))
    assert null_simulation.main(["--draws", "200"]) == 0
    assert capsys.readouterr().out.endswith("1 situations, 0 outside 3-7 %\n")
    monkeypatch.setattr(null_simulation, "LEAST", 0.5)
    assert null_simulation.main(["--draws", "20"]) == 1
    assert capsys.readouterr().out.endswith("1 situations, 1 outside 3-7 %\n")
