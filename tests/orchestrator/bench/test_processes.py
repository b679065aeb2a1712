"""CPU time of a tree of processes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from orchestrator.bench.processes import OFTEN, Tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

WORKS = "import time\nwhile time.process_time() < 0.5: pass\n"
# whose own child nobody waits for, as a raylet does with its workers
HAS_CHILD = f"""import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {WORKS + "time.sleep(1)"!r}])
time.sleep(3)
"""


def test_what_all_processes_work_is_counted_and_what_was_before_is_not() -> None:
    before = time.process_time()
    while time.process_time() < before + 0.3:
        pass
    with Tree() as tree:
        subprocess.run([sys.executable, "-c", HAS_CHILD], check=True)
    assert tree.seconds >= 0.45
    with Tree() as idle:
        time.sleep(2 * OFTEN)
    assert idle.seconds < tree.seconds
