"""Processes that a driver or a failed start left running are found and ended; a lock lets one use a file."""

import errno
import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import psutil
import pytest

from ctvr.orchestrator import processes
from ctvr.orchestrator.cli.leftovers import TOKEN, end_leftovers

SLEEP = "print(flush=True); time.sleep(600)"


def start(code: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start Python code, and return when it has printed a line."""
    command = [sys.executable, "-c", f"import signal, subprocess, sys, time; {code}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **variables})
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_processes_with_the_drivers_token_are_ended():
    own, other = start(SLEEP, **{TOKEN: "token of this test"}), start(SLEEP, **{TOKEN: "another"})
    try:
        assert processes.find_by_environment(TOKEN, "token of this test") == {psutil.Process(own.pid)}
        end_leftovers("token of this test")
        assert own.wait(0) < 0
        assert processes.is_alive(psutil.Process(other.pid))
    finally:
        other.kill()
        other.wait()


def test_exiting_process_is_awaited():
    """The kernel removes the environment of an ending process before its files and locks, here for half a second."""
    left = start(f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), exit(0))); {SLEEP}")
    found = iter([{psutil.Process(left.pid)}])
    processes.terminate(lambda: next(found, set()))
    assert left.wait(0) == 0


def test_process_that_ignores_the_first_signal_is_killed(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)
    left = start(f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}")
    found = iter([{psutil.Process(left.pid)}])
    processes.terminate(lambda: next(found, set()))
    assert left.wait(0) == -9


def test_descendants_are_those_that_run():
    before = processes.descendants()
    code = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(child.pid, flush=True)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; {code}; child.wait()"], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert processes.descendants() - before == {psutil.Process(parent.pid), child}
    child.kill()
    ended = psutil.Process(parent.pid)
    while ended.status() != psutil.STATUS_ZOMBIE:  # it has not been waited for
        time.sleep(0.01)
    assert not processes.is_alive(ended)
    assert processes.descendants() <= before
    parent.wait()
    assert not processes.is_alive(ended)


class Listed:
    """A process as psutil lists it."""

    def __init__(self, pid: int, parent: int, arguments: tuple[str, ...] = (), **environment: str) -> None:
        self.pid, self.parent, self.arguments, self.environment = pid, parent, arguments, environment

    def ppid(self) -> int:
        return self.parent

    def cmdline(self) -> list[str]:
        return list(self.arguments)

    def environ(self) -> dict[str, str]:
        if self.pid == 50:
            raise psutil.AccessDenied
        return self.environment


def test_program_that_is_being_loaded_is_found(monkeypatch):
    """For a moment it has no environment; kernel threads and `env -i` never have one."""
    loading = Listed(7, 1)
    others = [Listed(2, 0), Listed(30, 2), Listed(40, 1, ("sleep",)), Listed(50, 1), Listed(60, 1, ("sleep",), A="u")]
    monkeypatch.setattr(psutil, "process_iter", lambda: [*others, loading])
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        loading.environment = {"A": "t"} if len(waits) == 3 else {}

    monkeypatch.setattr(processes.time, "sleep", wait)
    assert processes.find_by_environment("A", "t") == {loading}
    assert len(waits) == 3, "no other process is waited for"


HOLD = """
from pathlib import Path
from ctvr.orchestrator import processes
def none(*_): raise OSError({errno}, "none here")
if {errno}: processes.fcntl.flock = none
with processes.hold_lock(Path({path!r})):
    print(flush=True); time.sleep(600)
"""
NONE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF, errno.EINVAL, errno.EIO)


@pytest.fixture(params=[0, *NONE], ids=lambda code: errno.errorcode.get(code, "locks"))
def lacking(request, monkeypatch):
    """Return the error with which the file system refuses every lock; 0 if it has locks."""
    code: int = request.param

    def none(*_):
        raise OSError(code, os.strerror(code))

    if code:
        monkeypatch.setattr(fcntl, "flock", none)
    return code


def test_a_lock_excludes_others_until_it_is_released(tmp_path, lacking):
    lock, order = tmp_path / "lock", list[str]()

    def wait() -> None:
        with processes.hold_lock(lock) as file:
            file.write(b"2")
            order.append("second")

    with processes.hold_lock(lock) as file:
        file.write(b"1")
        with pytest.raises(BlockingIOError), processes.hold_lock(lock, wait=False):
            pytest.fail("two holders")
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]
    assert lock.read_bytes() == b"12"
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize("code", [0, errno.ENOSYS])
def test_the_lock_of_a_killed_process_is_free(tmp_path, monkeypatch, code):
    lock = tmp_path / "lock"
    holder = start(HOLD.format(errno=code, path=str(lock)))
    try:
        if code:
            monkeypatch.setattr(fcntl, "flock", lambda *_: fail(code))
        with pytest.raises(BlockingIOError), processes.hold_lock(lock, wait=False):
            pytest.fail("two holders")
        holder.kill()
        holder.wait()
        with processes.hold_lock(lock):  # waits, since the first attempt may only remove what the killed process left
            pass
    finally:
        holder.kill()


def fail(code: int) -> None:
    raise OSError(code, os.strerror(code))


def test_shared_locks_admit_each_other(tmp_path, lacking):
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(processes.hold_lock(tmp_path / "lock", is_shared=True))
        if not lacking:
            with pytest.raises(BlockingIOError):
                held.enter_context(processes.hold_lock(tmp_path / "lock", wait=False))


def test_a_pipe_or_a_folder_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError), processes.hold_lock(path):
            pytest.fail("locked")


def test_the_kinds_of_locks_that_a_folder_lacks_are_told_apart(tmp_path, monkeypatch):
    assert processes.lock_faults_in(tmp_path) == {}
    monkeypatch.setattr(fcntl, "lockf", lambda *_: fail(errno.ENOLCK))
    faults = processes.lock_faults_in(tmp_path)
    assert {kind: error.errno for kind, error in faults.items()} == {"fcntl": errno.ENOLCK}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"slurm/job7/cpu.max": "max 100000", "slurm/cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/slurm/job7/cpu.cfs_quota_us": "200000", "cpu/slurm/job7/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "damaged"}, 8),
    ],
)
def test_processors_are_counted_within_the_limits_of_the_group(tmp_path, monkeypatch, files, count):
    monkeypatch.setattr(processes, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    groups = "3:cpuset:/elsewhere\n2:cpu,cpuacct:/slurm/job7\n0::/slurm/job7\n"
    for name, text in {"proc/self/cgroup": groups, **{f"cgroup/{name}": text for name, text in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processes.count_processors() == count


def test_only_ctrl_c_counts_as_a_second_signal_at_once(monkeypatch):
    """A closed terminal sends SIGHUP twice, also to code that handles the first one by an exception."""
    now = [100.0]
    monkeypatch.setattr(processes, "_signaled", [-math.inf])
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    assert [processes.is_repeated(n) for n in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)] == [False, True, True]
    assert not processes.is_repeated(signal.SIGINT)
    now[0] += processes.REPEAT_SECONDS
    assert not processes.is_repeated(signal.SIGHUP)
