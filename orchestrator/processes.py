"""Find and terminate processes, count the usable processors, and lock files against other processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
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
_HELD = (errno.EWOULDBLOCK, errno.EACCES)  # of flock: another process holds the lock
_LEASE_SECONDS = 30.0  # a lease without renewal for this long is taken over; the holder renews it every 10 s


def count_processors() -> int:
    """Return how many processors this process may use: those of its affinity, at most the quota of its control group.

    A batch system or a container often grants fewer than the machine has.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, *map(math.ceil, _quotas())))


def _quotas() -> Iterator[float]:
    """Yield the processors that each control group of this process grants (cgroups 2 and 1), and 1e9 for no quota."""
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
    """Return whether a process has not ended; a zombie has."""
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
        wait: wait for the lock if another process holds it.
        is_shared: share the lock with other holders of a shared lock.
        opener: of `open`; default: `open_nonblocking`.

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
    """Return the errors of the two kinds of locks of an open file: `fcntl` (SQLite's) and `flock` (`hold_lock`'s)."""
    faults: dict[str, OSError] = {}
    for kind, lock in (("fcntl", fcntl.lockf), ("flock", fcntl.flock)):
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                faults[kind] = error
    return faults


def lock_faults_in(folder: Path) -> dict[str, OSError]:
    """Return the errors of `lock_faults` for a new file in a folder."""
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
