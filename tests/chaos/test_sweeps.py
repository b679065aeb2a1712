"""A sweep on Ray, all of whose processes are killed, equals the unbroken one."""

import pytest

from tests.chaos.__main__ import main
from tests.chaos.sweeps import VICTIMS


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(3000)
def test_one_sweep_whose_processes_are_all_killed_equals_the_unbroken_one(capsys):
    assert main(["--ray", "--kills", str(len(VICTIMS)), "--seed", "1"]) == 0
    assert f"chaos: {len(VICTIMS)} kills, 0 mismatches" in capsys.readouterr().out
