"""Find and terminate processes of this machine, by descent or by an environment variable."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil

GRACE_SECONDS = 10.0  # time for processes to exit by themselves
START_SECONDS = 0.5  # longest wait for programs that are being loaded


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def descendants() -> set[psutil.Process]:
    """Return the running descendants of this process."""
    return set(filter(is_alive, psutil.Process().children(recursive=True)))


def find_by_environment(name: str, value: str) -> set[psutil.Process]:
    """Return the running processes of this user in whose environment a variable has this value."""
    found, until = set(), time.monotonic() + START_SECONDS
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended, or is of another user
            while not (environment := process.environ()) and _is_starting(process) and time.monotonic() < until:
                time.sleep(0.01)
            if environment.get(name) == value:
                found.add(process)
    return found


def _is_starting(process: psutil.Process) -> bool:
    """Return whether a process is inside `exec`, where it briefly has neither environment nor arguments.

    Kernel threads (children of process 2) have none either, and are excluded.
    """
    return not process.cmdline() and 2 not in (process.pid, process.ppid())


def terminate(find: Callable[[], set[psutil.Process]]) -> None:
    """Terminate the processes that `find` returns, now or later; kill those that do not end in time.

    Wait until each has exited, because it can hold files and locks after its environment is unreadable.
    """
    left: set[psutil.Process] = set()
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        until = time.monotonic() + GRACE_SECONDS
        left |= find()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                stop(process)
        while (left := set(filter(is_alive, left))) and time.monotonic() < until:
            time.sleep(0.1)
            left |= find()
