"""Two sweeps of different drivers on one cluster: the second one gets its share before the first one ends."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from tests.faults.conftest import REPOSITORY
from tests.orchestrator.on_ray.test_sweeps import PATIENCE, Finished, started, wait_for

__all__ = ["started"]
pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(1800)]

# `ctvr` with shorter waits: of one check of the cluster, and until a driver counts as waiting
COMMAND = """
from ctvr.orchestrator.on_ray import concurrency
concurrency.LOOK_SECONDS, concurrency.WAITING_SECONDS = 1.0, 4.0
from ctvr.__main__ import main
main()
"""


def start(cluster: Any, execution: ExecutionConfig, manifest: str, name: str, rates: Sequence[str]) -> Any:
    words = ["sweep", "clip4clip", "--stream", manifest, "--name", name, "--runs", str(execution.runs)]
    words += ["--address", cluster.address, "--space", f"method.lr={','.join(rates)}", "--searcher", "grid"]
    words += ["--trials", str(len(rates)), "--scheduler", "none", "--seeds", "0", "--confirm", "0", "--no-reuse"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words, "optim.epochs=30"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_second_sweep_does_not_wait_for_the_end_of_the_first(fake_cluster, runs: Path, manifest, started):
    execution = ExecutionConfig(runs=runs)
    finished = Finished(runs)
    first = start(fake_cluster, execution, manifest, "first", [f"{rate}e-6" for rate in range(1, 41)])
    started.append(first)
    wait_for(lambda: finished(1) or first.poll() is not None)
    second = start(fake_cluster, execution, manifest, "second", ["1e-3", "2e-3"])
    started.append(second)

    out, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, err
    assert "2 complete, 0 stopped early, 0 failed" in out
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=PATIENCE)
    assert first.returncode == 130, err  # it was not complete
    assert "this sweep now runs at most 1 trial at once (other drivers waiting: 1)" in err
    assert {line.split()[3] for line in err.splitlines() if re.match(r"[\d:]{8}  trial", line)} <= {"task", "complete"}
