"""Attempts to escape from the sandbox. Each one returns if the escape succeeds, else it raises OSError.

A successful attempt does no damage: it sets values to what they are, or uses files in a folder of the test.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctvr
from ctvr.sandbox.calls import ARCHITECTURES, numbers

ROOT = Path(ctvr.__file__).resolve().parents[1]

# Calls that Python and the C library have no function for: name, number on x86_64, number on aarch64
_CALLS = """
keyctl 250 219, add_key 248 217, io_uring_setup 425 425, userfaultfd 323 282, bpf 321 280, perf_event_open 298 241,
mq_open 240 180, ioprio_set 251 30, pidfd_send_signal 424 424, pidfd_open 434 434, name_to_handle_at 303 264,
fanotify_init 300 262, openat2 437 437, clone3 435 435
"""
_SET_ALL = 0o600 | 0o1000  # flags of shmget(2), msgget(2) and semget(2): IPC_CREAT


@dataclass(frozen=True)
class Target:
    """Paths and processes that an isolated process tries to reach, as text."""

    given: str  # a readable folder, with the file `clip`
    kept: str  # a forbidden folder, with the file `secret`
    stream: str  # sockets of its parent: paths, a name, ports
    datagram: str
    abstract: str
    tcp: int
    udp: int
    memory: int  # id of System V shared memory
    parent: int
    address: int  # address of eight bytes in the parent's memory


Attempt = Callable[[Target], object]
WAYS: dict[str, Attempt] = {}  # in this order


def open_ways(target: Target) -> list[str]:
    """Try every escape; return the names of the open ones."""
    found = []
    for name, attempt in WAYS.items():
        try:
            attempt(target)
        except (OSError, AttributeError):  # AttributeError: the C library lacks the function
            continue
        found.append(name)
    return found


def _system(name: str, *words: object) -> int:
    """Call a function of the C library, or a system call that has no such function.

    Raises:
        OSError: if the system refuses it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    machine = os.uname().machine
    known = numbers(_CALLS, machine) if machine in ARCHITECTURES else {}
    result = int(library.syscall(known[name], *words) if name in known else getattr(library, name)(*words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _secret(target: Target) -> Path:
    return Path(target.kept, "secret")


def _on_clip(do: Callable[[int], object]) -> Attempt:
    """Return an attempt that applies an operation to the descriptor of a readable file."""

    def attempt(target: Target) -> None:
        descriptor = os.open(Path(target.given, "clip"), os.O_RDONLY)
        try:
            do(descriptor)
        finally:
            os.close(descriptor)

    return attempt


WAYS.update(
    {
        "existence, size and times of files": lambda t: os.stat(_secret(t)),
        "read a file": lambda t: _secret(t).read_bytes(),
        "read next to our packages": lambda _: (ROOT / "pyproject.toml").read_bytes(),
        "list a folder": lambda t: os.listdir(t.kept),
        "names of extended attributes": lambda t: os.listxattr(_secret(t)),
        "handle of a file": lambda t: _handle(t),
        "write a file": lambda t: os.close(os.open(_secret(t), os.O_WRONLY)),
        "write a file that may be read": lambda t: os.close(os.open(Path(t.given, "clip"), os.O_RDWR)),
        "make a file": lambda t: Path(t.given, "new").write_text("x"),
        "make a folder": lambda t: os.mkdir(Path(t.given, "folder")),
        "make a FIFO": lambda t: os.mkfifo(Path(t.given, "fifo")),
        "make a symbolic link": lambda t: os.symlink(t.kept, Path(t.given, "link")),
        "make a hard link": lambda t: os.link(_secret(t), Path(t.given, "hard")),
        "truncate a file": lambda t: os.truncate(_secret(t), 6),
        "rename a file": lambda t: os.rename(_secret(t), _secret(t)),
        "delete a file": lambda t: os.unlink(Path(t.kept, "spare")),
        "mode of a file": lambda t: os.chmod(_secret(t), 0o600),
        "mode of a file that may be read": _on_clip(lambda clip: os.fchmod(clip, 0o600)),
        "owner of a file": lambda t: os.chown(_secret(t), os.getuid(), -1),
        "times of a file": lambda t: os.utime(_secret(t)),
        "times of a file that may be read": _on_clip(os.utime),
        "extended attributes of a file": lambda t: os.setxattr(_secret(t), "user.way", b"1"),
        "attributes of a file that may be read": _on_clip(lambda clip: os.setxattr(clip, "user.way", b"1")),
        "flags of a file that may be read": _on_clip(lambda clip: fcntl.ioctl(clip, 0x80086601, bytes(8))),
        "lock of a file that may be read": _on_clip(lambda clip: fcntl.flock(clip, fcntl.LOCK_EX | fcntl.LOCK_NB)),
        "lease of a file that may be read": _on_clip(lambda clip: fcntl.fcntl(clip, fcntl.F_SETLEASE, fcntl.F_RDLCK)),
        "watch a folder": lambda t: _watch(t),
        "watch a file system": lambda t: _system("fanotify_init", 0x200, 0),
    }
)


def _handle(target: Target) -> None:
    room = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    _system("name_to_handle_at", -100, os.fsencode(_secret(target)), room, ctypes.byref(ctypes.c_int()), 0)


def _watch(target: Target) -> None:
    _system("inotify_add_watch", _system("inotify_init1", 0), os.fsencode(target.kept), 0xFFF)


# ------------------------------------------------------------------------------------------ sockets


def _connects(family: int, kind: int, place: Any) -> None:
    with socket.socket(family, kind) as made:
        made.settimeout(3)
        made.connect(place)
        made.send(b"x")


WAYS.update(
    {
        "Unix socket with a path": lambda t: _connects(socket.AF_UNIX, socket.SOCK_STREAM, t.stream),
        "Unix datagrams to a path": lambda t: _connects(socket.AF_UNIX, socket.SOCK_DGRAM, t.datagram),
        "Unix socket with a name": lambda t: _connects(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + t.abstract),
        "TCP": lambda t: _connects(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", t.tcp)),
        "UDP": lambda t: _connects(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", t.udp)),
        "netlink": lambda t: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
    }
)

# ---------------------------------------------------------------------------------- other processes


def _signal_by_descriptor(target: Target) -> None:
    _system("pidfd_send_signal", _system("pidfd_open", target.parent, 0), 0, None, 0)


def _signal_by_kernel(target: Target) -> None:
    ends = os.pipe()
    try:
        fcntl.fcntl(ends[0], fcntl.F_SETOWN, target.parent)
        fcntl.fcntl(ends[0], fcntl.F_SETSIG, signal.SIGURG)  # ignored by default
        fcntl.fcntl(ends[0], fcntl.F_SETFL, os.O_ASYNC)
    finally:
        os.close(ends[0])
        os.close(ends[1])


def _limits(target: Target) -> None:
    resource.prlimit(target.parent, resource.RLIMIT_CORE, resource.prlimit(target.parent, resource.RLIMIT_CORE))


def _memory(target: Target) -> None:
    room = ctypes.create_string_buffer(8)
    here, there = struct.pack("PN", ctypes.addressof(room), 8), struct.pack("PN", target.address, 8)
    size = ctypes.c_ulong
    _system("process_vm_readv", target.parent, here, size(1), there, size(1), size(0))


WAYS.update(
    {
        "signal a process": lambda t: os.kill(t.parent, 0),
        "signal a process by its descriptor": _signal_by_descriptor,
        "have the kernel signal a process": _signal_by_kernel,
        "limits of a process": _limits,
        "memory of a process": _memory,
        "priority of a process": lambda t: os.setpriority(os.PRIO_PROCESS, t.parent, os.getpriority(0, t.parent)),
        "processors of a process": lambda t: os.sched_setaffinity(t.parent, os.sched_getaffinity(t.parent)),
        "scheduling of a process": lambda t: os.sched_setscheduler(t.parent, os.SCHED_OTHER, os.sched_param(0)),
        "disk priority of a process": lambda t: _system("ioprio_set", 1, t.parent, 0),
        "trace a process": lambda t: _system("ptrace", 0x4206, t.parent, None, None),  # PTRACE_SEIZE does not stop it
        "environment of a process": lambda t: Path(f"/proc/{t.parent}/environ").read_bytes(),
        "folder of a process": lambda t: os.listdir(f"/proc/{t.parent}/cwd"),
        "System V memory": lambda t: _system("shmdt", ctypes.c_void_p(_attached(t.memory))),
        "System V queues": lambda t: _system("msgctl", _system("msgget", 0, _SET_ALL), 0, None),
        "System V semaphores": lambda t: _system("semctl", _system("semget", 0, 1, _SET_ALL), 0, 0),
        "POSIX queues": lambda t: os.close(_system("mq_open", b"ctvr-way", os.O_RDWR | os.O_CREAT, 0o600, None)),
        "keyrings": lambda t: _system("keyctl", 0, -4, 1),
    }
)


def _attached(number: int) -> int:
    attach = ctypes.CDLL(None, use_errno=True).shmat
    attach.restype = ctypes.c_void_p
    place = int(attach(number, None, 0) or 0)
    if ctypes.c_long(place).value == -1:
        raise OSError(ctypes.get_errno(), "shmat")
    return place


# ------------------------------------------------------------------------- the kernel, and programs


def _bpf(_: Target) -> None:
    os.close(_system("bpf", 0, struct.pack("5I44x", 2, 4, 4, 1, 0), 64))  # an array of one entry


def _perf(_: Target) -> None:
    os.close(_system("perf_event_open", struct.pack("IIQQQQQ16x", 1, 64, 0, 0, 0, 0, 1 << 5), 0, -1, -1, 0))


def _raise(_: Target) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError as error:
        raise OSError(str(error)) from None


def _fork(_: Target) -> None:
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)


WAYS.update(
    {
        "start a process": _fork,
        "bpf": _bpf,
        "perf_event_open": _perf,
        "raise a limit of its own": _raise,
        "io_uring": lambda _: os.close(_system("io_uring_setup", 1, bytes(120))),
        "userfaultfd": lambda _: os.close(_system("userfaultfd", 1)),
        "files in memory": lambda _: os.close(os.memfd_create("way")),
        "another root": lambda _: os.chroot("/"),
        "namespaces": lambda _: _system("unshare", 0x10000000 | 0x20000),  # new user and mount namespaces
        "mounts": lambda t: _system("mount", b"none", os.fsencode(t.given), b"tmpfs", 0, None),
    }
)
