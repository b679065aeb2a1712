"""Processes are found by their titles; commits are noted as they appear, and reported if they change."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos import watch as chaos_watch
from tests.chaos.watch import Server, Watch, below, wait_for


def test_processes_below_one_are_found_with_their_whole_titles():
    sleeper = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)', sys.argv[1]])"
    )
    parent = subprocess.Popen([sys.executable, "-c", sleeper, "x" * 300 + " the end"])
    try:
        until = time.monotonic() + 30
        while not any("time.sleep(60) x" in title for title in below(parent.pid).values()):
            assert time.monotonic() < until
            time.sleep(0.05)
        ((child, title),) = below(parent.pid).items()
        assert title.endswith("x the end")
        assert below(child) == {}
        assert child in below(os.getpid())
    finally:
        for pid in below(parent.pid):
            os.kill(pid, 9)
        parent.kill()
        parent.wait()
    assert below(parent.pid) == {}


def put(file: Path, text: str) -> None:
    """Write as the store does: whole, under a new inode."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".tmp").write_text(text)
    file.with_suffix(".tmp").replace(file)


def test_commits_are_noted_once_and_those_that_change_are_reported(tmp_path):
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


def test_waiting_ends(monkeypatch):
    wait_for(lambda: True)
    monkeypatch.setattr(chaos_watch, "PATIENCE", 0.0)
    with pytest.raises(TimeoutError, match="did not happen within 0 s"):
        wait_for(lambda: False)


def test_a_server_that_is_closed_is_not_started_later(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(Server, "start", lambda self: started.append(self))
    server = Server(tmp_path)
    server.start_later(0.05)
    server.close()
    time.sleep(0.1)
    assert started == []
