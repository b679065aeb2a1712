"""Search and termination of processes, the number of usable processors, and locks on files.

This module also stores the progress of this process, from which a stall is detected, and the time of its last signal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil

GRACE_SECONDS = 10.0  # time for processes to exit by themselves
START_SECONDS = 0.5  # longest wait for programs that are being loaded
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_HELD = (errno.EWOULDBLOCK, errno.EACCES)  # errors of flock if another process holds the lock
_LEASE_SECONDS = 30.0  # a lease without renewal for this long is taken over; the holder renews it every 10 s
REPEAT_SECONDS = 2.0  # a closed terminal sends SIGHUP twice, once through the shell
_place, _beats, _signaled = [""], [0], [-math.inf]


def record_position(place: str) -> None:
    """Record the task, epoch and step that this process has reached, and count it as progress."""
    _place[0] = place
    beat()


def beat() -> None:
    """Count progress within a step or phase that may take long: a batch, an object of the store, a tile of scores."""
    _beats[0] += 1


def progress() -> tuple[str, int]:
    """Return this process's last position and its number of `beat` calls."""
    return _place[0], _beats[0]


def count_processors() -> int:
    """Return the number of processors that this process may use: its CPU affinity, limited by its control group.

    A batch system or a container often grants fewer than the machine has.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, *map(math.ceil, _quotas())))


def _quotas() -> Iterator[float]:
    """Yield 1e9 (no quota), then the processors that each control group of this process grants (cgroups 2 and 1)."""
    yield 1e9
    groups = {""}
    with contextlib.suppress(OSError):
        lines = (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
        own = [
            Path(path.lstrip("/")) for _, kind, path in (line.split(":", 2) for line in lines) if "cpuset" not in kind
        ]
        groups |= {str(each) for path in own for each in (path, *path.parents)}
    for group in groups:
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            folder = _CGROUP / group if len(files) == 1 else _CGROUP / "cpu" / group
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or "max": no limit
                quota, period = map(float, " ".join((folder / file).read_text() for file in files).split())
                if quota > 0:
                    yield quota / period


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie counts as ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def is_running(pid: int) -> bool:
    """Return whether this machine has a process with this ID."""
    return psutil.pid_exists(pid)


def descendants() -> set[psutil.Process]:
    """Return the running descendants of this process."""
    return set(filter(is_alive, psutil.Process().children(recursive=True)))


def find_by_environment(name: str, value: str) -> set[psutil.Process]:
    """Return the running processes of this user in whose environment a variable has this value."""
    found, until = set(), time.monotonic() + START_SECONDS
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended, or belongs to another user
            while not (environment := process.environ()) and _is_starting(process) and time.monotonic() < until:
                time.sleep(0.01)
            if environment.get(name) == value:
                found.add(process)
    return found


def _is_starting(process: psutil.Process) -> bool:
    """Return whether a process is inside `exec`, where it briefly has neither environment nor arguments.

    Kernel threads (children of process 2) always lack both, and are excluded.
    """
    return not process.cmdline() and 2 not in (process.pid, process.ppid())


def terminate(find: Callable[[], set[psutil.Process]]) -> None:
    """Terminate the processes that `find` returns, now or later; kill processes that do not end in time.

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


@contextlib.contextmanager
def hold_lock(
    path: Path,
    mode: str = "ab",
    wait: bool = True,
    is_shared: bool = False,
    opener: Callable[[str, int], int] | None = None,
) -> Iterator[IO[bytes]]:
    """Open a file and hold its lock against other processes; the system releases it when the process ends.

    Some file systems have no locks (Lustre mounted without `flock`, some FUSE mounts). There a file `NAME.holder` with
    host, process and time is the lock, which its holder renews. Another process takes the lock over when the holder has
    ended or no longer renews it. A shared lock is not held there.

    Args:
        path: the file; its folder must exist.
        mode: mode of `open`, binary.
        wait: whether to wait for the lock if another process holds it.
        is_shared: whether to share the lock with other holders of a shared lock.
        opener: the argument `opener` of `open`; by default `open_nonblocking`.

    Raises:
        BlockingIOError: if another process holds the lock and `wait` is false.
        OSError: if the file cannot be opened, or is not a regular file (opening a pipe does not block).
    """
    with contextlib.ExitStack() as held:
        file = held.enter_context(open(path, mode, opener=opener or open_nonblocking))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a file", str(path))
        # On NFS, only a shared lock works on a file that is open for reading
        kind = fcntl.LOCK_SH if is_shared or not file.writable() else fcntl.LOCK_EX
        try:
            fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno in _HELD:
                raise BlockingIOError(error.errno, os.strerror(error.errno), str(path)) from None
            if not is_shared:
                _hold_lease(held, path, wait)
        yield file


def lock_faults(file: IO[bytes]) -> dict[str, OSError]:
    """Try both kinds of locks on an open file and return their errors: `fcntl` (used by SQLite) and `flock`.

    A lock that another process holds is not an error.
    """
    faults: dict[str, OSError] = {}
    for kind, lock in (("fcntl", fcntl.lockf), ("flock", fcntl.flock)):
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                faults[kind] = error
    return faults


def lock_faults_in(folder: Path) -> dict[str, OSError]:
    """Return `lock_faults` of a new temporary file in a folder."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".locks-") as file:
        return lock_faults(file.file)


def _hold_lease(held: contextlib.ExitStack, path: Path, wait: bool) -> None:
    import filelock  # only file systems without locks need it

    lease = filelock.SoftFileLease(f"{path}.holder", lease_duration=_LEASE_SECONDS, thread_local=False)
    try:
        held.enter_context(lease.acquire(blocking=wait))
    except filelock.Timeout:
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path)) from None


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file without blocking (an `opener` of `open`); a pipe raises an error."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def is_repeated(number: int) -> bool:
    """Return whether a signal other than Ctrl-C repeats the last one within `REPEAT_SECONDS`.

    If it does not, record its time.
    """
    now = time.monotonic()
    if number != signal.SIGINT and now - _signaled[0] < REPEAT_SECONDS:
        return True
    _signaled[0] = now
    return False
