"""The kills of a sweep are the same for the same seed; processes are found by their titles."""

import pytest

from tests.chaos.__main__ import main
from tests.chaos.sweeps import TASKS, TRIALS, VICTIMS, Sweeps, compare


def test_the_plan_of_kills_depends_on_the_seed_only(tmp_path):
    kills = [[Sweeps(tmp_path, seed).kills(number) for number in range(4)] for seed in (0, 0, 1)]
    assert kills[0] == kills[1]
    assert kills[0] != kills[2]
    for plan in kills[0]:
        assert sorted(kill.victim for kill in plan) == sorted(VICTIMS)
        moments = [kill.commits for kill in plan]
        assert moments == sorted(moments)
        assert max(moments) < TRIALS * TASKS


def test_metrics_of_a_sweep_are_compared_by_trial():
    expected = {("0", "a", 1): (1.0, 1), ("1e-6", "a", 1): (2.0, 1), ("0", "cost/seconds_task", 1): (3.0, 1)}
    assert list(compare(expected, {**expected, ("0", "cost/seconds_task", 1): (4.0, 1)})) == []
    found = {("0", "a", 1): (1.0, 2), ("0", "cost/seconds_task", 1): (4.0, 1), ("1e-6", "b", 1): (2.0, 1)}
    assert list(compare(expected, found)) == [
        "metric ('1e-6', 'a', 1) is lost",
        "metric ('0', 'a', 1) is there 2 times",
        "metric ('1e-6', 'b', 1) should not be there",
    ]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(3000)
def test_one_sweep_whose_processes_are_all_killed_equals_the_unbroken_one(capsys):
    assert main(["--ray", "--kills", str(len(VICTIMS)), "--seed", "1"]) == 0
    assert f"chaos: {len(VICTIMS)} kills, 0 mismatches" in capsys.readouterr().out
