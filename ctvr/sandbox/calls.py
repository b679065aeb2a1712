"""System calls that a sandboxed process may make, with their numbers on the two supported architectures.

Numbers are those of Linux: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h. A test
compares them with the headers of the system. "-" marks a call that the architecture lacks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h, by `os.uname().machine`
SINCE_5_1 = 424  # numbers from here on are equal on all architectures; libraries work without these calls

# name, number on x86_64, number on aarch64
_ALLOWED = """
read 0 63, readv 19 65, pread64 17 67, preadv 295 69, preadv2 327 286, lseek 8 62, close 3 57, close_range 436 436,
stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48,
faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49,
fchdir 81 50, statfs 137 43, fstatfs 138 44, fadvise64 221 223, readahead 187 213, sendfile 40 71, dup 32 23,
dup2 33 -, dup3 292 24, umask 95 166, write 1 64, writev 20 66, pwrite64 18 68, pwritev 296 70, pwritev2 328 287,
mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, mincore 27 232, brk 12 214, msync 26 227,
membarrier 324 283, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288, map_shadow_stack 453 453,
mseal 462 462, futex 202 98, futex_waitv 449 449, futex_wake 454 454, futex_wait 455 455, futex_requeue 456 456,
set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, gettid 186 178, sched_yield 24 124,
sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120, sched_getattr 315 275,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127, getpriority 140 141,
getcpu 309 168, arch_prctl 158 -, restart_syscall 219 128, exit 60 93, exit_group 231 94, wait4 61 260,
waitid 247 95, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -, alarm 37 -, signalfd4 289 74,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, gettimeofday 96 169, time 201 -,
nanosleep 35 101, times 100 153, getitimer 36 102, setitimer 38 103, timer_create 222 107, timer_settime 223 110,
timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111, timerfd_create 283 85,
timerfd_settime 286 86, timerfd_gettime 287 87, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22,
epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, pipe 22 -, pipe2 293 59, getpid 39 172, getppid 110 173,
getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getresuid 118 148, getresgid 120 150, getgroups 115 158, capget 125 90, uname 63 160, sysinfo 99 179,
getrusage 98 165, getrlimit 97 163, setrlimit 160 164, getrandom 318 278
"""
# For a process that may write into a folder; Landlock decides which folder
_WRITING = """
creat 85 -, ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, unlink 87 -, unlinkat 263 35,
rename 82 -, renameat 264 38, renameat2 316 276
"""
# Allowed for some values of one argument
_ARGUMENT_FILTERED = """
open 2 -, openat 257 56, clone 56 220, ioctl 16 29, fcntl 72 25, prctl 157 167, prlimit64 302 261, kill 62 129,
tgkill 234 131
"""
_OWN = """seccomp 317 277"""

_THREAD, _NEW_NAMESPACES = 0x10000, 0x7E020000  # flags of clone(2)
_CHANGES = 0o3 | 0o100 | 0o1000  # flags of open(2): access mode, O_CREAT, O_TRUNC
_TERMINAL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # ioctl(2): TCGETS, TCGETS2, TIOCGWINSZ, FION*
_DESCRIPTOR = (0, 1, 2, 3, 4, 1030, 1032)  # fcntl(2): F_DUPFD, F_[GS]ETFD, F_[GS]ETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
_NAMES = (3, 15, 16, 23, 0x53564D41)  # prctl(2): PR_GET_DUMPABLE, PR_[SG]ET_NAME, PR_CAPBSET_READ, PR_SET_VMA


@dataclass(frozen=True)
class Bound:
    """A system call that is allowed if `argument & mask` is in `values`; only the low 32 bits are compared."""

    number: int
    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return the numbers of a table's calls on an architecture, by name."""
    column = list(ARCHITECTURES).index(machine) + 1
    rows = (entry.split() for entry in table.replace("\n", " ").split(","))
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def known(machine: str) -> dict[str, int]:
    """Return the numbers of all calls in this file, by name."""
    return {
        name: number
        for table in (_ALLOWED, _WRITING, _ARGUMENT_FILTERED, _OWN)
        for name, number in numbers(table, machine).items()
    }


def allowed(machine: str, may_write: bool) -> set[int]:
    """Return the numbers of calls that are allowed with any arguments."""
    found = set(numbers(_ALLOWED, machine).values())
    if may_write:
        opens = numbers(_ARGUMENT_FILTERED, machine)
        found |= set(numbers(_WRITING, machine).values()) | {
            opens[name] for name in ("open", "openat") if name in opens
        }
    return found


def bounds(machine: str, may_write: bool) -> Iterable[Bound]:
    """Yield the calls that are allowed only with certain arguments: on this process, its threads, or for reading."""
    number, me = numbers(_ARGUMENT_FILTERED, machine), os.getpid()
    if not may_write:
        if "open" in number:
            yield Bound(number["open"], 1, (0,), _CHANGES)
        yield Bound(number["openat"], 2, (0,), _CHANGES)
    yield Bound(number["clone"], 0, (_THREAD,), _THREAD | _NEW_NAMESPACES)  # a thread, not a process
    yield Bound(number["ioctl"], 1, _TERMINAL)  # excludes flags and attributes of files
    yield Bound(number["fcntl"], 1, _DESCRIPTOR)  # excludes leases, locks and signals to an owner
    yield Bound(number["prctl"], 0, _NAMES)
    yield Bound(number["prlimit64"], 0, (0, me))
    yield Bound(number["kill"], 0, (me,))
    yield Bound(number["tgkill"], 0, (me,))
