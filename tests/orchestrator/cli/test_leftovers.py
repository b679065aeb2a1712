"""Processes that a driver left running are found and ended."""

import subprocess
import sys
import threading
import time

from ctvr.orchestrator.cli import leftovers
from tests.orchestrator.cli.test_supervisor import is_alive


def test_exiting_process_is_awaited(monkeypatch):
    """The kernel removes the environment of an ending process before its files and locks, here for half a second."""
    slow = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), exit(0))); print(flush=True); time.sleep(600)"
    left = subprocess.Popen([sys.executable, "-c", f"import signal, time; {slow}"], stdout=subprocess.PIPE)
    assert left.stdout is not None
    left.stdout.readline()
    found = iter([[left.pid]])
    monkeypatch.setattr(leftovers, "_with_token", lambda token: next(found, []))
    leftovers.end_leftovers("token")
    assert not is_alive(left.pid)
    assert left.wait(60) == 0


def write_process(folder, stat, environment=b"", arguments=b""):
    folder.mkdir()
    (folder / "stat").write_text(stat)
    (folder / "environ").write_bytes(environment)
    (folder / "cmdline").write_bytes(arguments)


def test_program_that_is_being_loaded_is_found(monkeypatch, tmp_path):
    """For a moment it has no environment; kernel threads, ended processes and `env -i` never have one."""
    monkeypatch.setattr(leftovers, "PROCESSES", tmp_path)
    write_process(tmp_path / "7", "7 (a) b) S 1 7 7")
    write_process(tmp_path / "2", "2 (kthreadd) S 0 0 0")
    write_process(tmp_path / "30", "30 (kworker) I 2 0 0")
    write_process(tmp_path / "40", "40 (ended) Z 1 0 0")
    write_process(tmp_path / "50", "50 (plain) S 1 0 0", arguments=b"sleep")
    own = f"A=1\0{leftovers.TOKEN}=t\0".encode()
    write_process(tmp_path / "60", "60 (other) S 1 0 0", f"{leftovers.TOKEN}=u\0".encode(), b"sleep")
    threading.Timer(0.1, (tmp_path / "7" / "environ").write_bytes, [own]).start()
    started = time.monotonic()
    assert leftovers._with_token("t") == [7]
    assert time.monotonic() - started >= 0.09
