"""What is killed in a sweep is the same for the same seed; processes are found by their titles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.chaos import main
from orchestrator.chaos_sweep import TASKS, TRIALS, VICTIMS, Sweeps, Watch, below, compare


def test_what_is_killed_is_the_same_for_the_same_seed(tmp_path):
    kills = [[Sweeps(tmp_path, seed).kills(number) for number in range(4)] for seed in (0, 0, 1)]
    assert kills[0] == kills[1]
    assert kills[0] != kills[2]
    for plan in kills[0]:
        assert sorted(kill.victim for kill in plan) == sorted(VICTIMS)
        moments = [kill.commits for kill in plan]
        assert moments == sorted(moments)
        assert max(moments) < TRIALS * TASKS


def test_processes_below_one_are_found_with_their_titles():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        until = time.monotonic() + 30
        while not any("time.sleep(60)" in title for title in below(parent.pid).values()):
            assert time.monotonic() < until
            time.sleep(0.05)
        (child,) = below(parent.pid)
        assert below(child) == {}
        assert child in below(os.getpid())
    finally:
        for pid in below(parent.pid):
            os.kill(pid, 9)
        parent.kill()
        parent.wait()


def put(file: Path, text: str) -> None:
    """Write as the store does: whole, under a new inode."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".tmp").write_text(text)
    file.with_suffix(".tmp").replace(file)


def test_commits_are_noted_once_and_those_that_change_are_told(tmp_path):
    watch = Watch(tmp_path)
    folder = tmp_path / "store" / "commits"
    started = time.monotonic()
    watch.start()
    put(folder / "zero-a" / "task_001.json", "1")
    put(folder / "a" / "task_001.json", "1")
    put(folder / "b" / "task_001.json", "1")
    while len(watch.seen) < 2:
        time.sleep(0.01)
    put(folder / "a" / "task_001.json", "2")
    while not watch.wrong:
        time.sleep(0.01)
    watch.stop()
    assert set(watch.seen) == {"a/task_001.json", "b/task_001.json"}
    assert watch.wrong == ["commit a/task_001.json was written again"]
    recovery = watch.recovery(started)
    assert recovery == max(watch.seen.values()) - started
    assert watch.recovery(time.monotonic()) is None


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
