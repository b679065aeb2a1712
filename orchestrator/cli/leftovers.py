"""Processes that a dead driver of a sweep left running, found by a token in their environment (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

TOKEN = "CTVR_DRIVER"  # environment variable of a driver and all its descendants
GRACE_SECONDS = 10.0  # time for the processes to exit by themselves
START_SECONDS = 0.5  # longest wait for programs that are being loaded
PROCESSES = Path("/proc")


def end_leftovers(token: str) -> None:
    """End the processes that a driver left running, recognized by its token."""
    left: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + GRACE_SECONDS
        for pid in (found := _with_token(token)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        left.update(found)
        while (left := {pid for pid in left if _runs(pid)}) and time.monotonic() < until:
            time.sleep(0.1)
            left.update(_with_token(token))


def _runs(pid: int) -> bool:
    """Return whether a process still exists; it may hold files and locks after its environment is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _with_token(token: str) -> list[int]:
    """Return the running processes of this user that a driver with this token started."""
    mark, found = f"{TOKEN}={token}".encode(), []
    until = time.monotonic() + START_SECONDS
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # the process has exited, or is of another user
            while not (environment := (folder / "environ").read_bytes()) and _is_starting(folder):
                if time.monotonic() > until:
                    break
                time.sleep(0.01)
            if mark in environment.split(b"\0"):
                found.append(int(folder.name))
    return found


def _is_starting(process: Path) -> bool:
    """Return whether a process is inside `exec`, where it briefly has neither environment nor arguments.

    Zombies and kernel threads (children of process 2) have none either, and are excluded.
    """
    state, parent = (process / "stat").read_text().rpartition(") ")[2].split()[:2]
    return state not in "ZX" and "2" not in (parent, process.name) and not (process / "cmdline").read_bytes()
