"""The tables of system calls compared with this system's headers, and the calls that none of them lists."""

import re
from pathlib import Path

import pytest

from ctvr.sandbox import calls
from ctvr.sandbox.calls import ARCHITECTURES, allowed, bounds, known, numbers
from tests.ctvr.sandbox import ways

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
OTHER_NAMES = {"newfstatat": "fstatat", "fadvise64": "fadvise64"}  # of asm-generic, by those of x86_64
FORBIDDEN = [
    "socket",
    "connect",
    "bind",
    "sendto",
    "sendmsg",
    "socketpair",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "fchownat",
    "utimensat",
    "setxattr",
    "fsetxattr",
    "execve",
    "execveat",
    "fork",
    "vfork",
    "clone3",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "setpriority",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setattr",
    "shmget",
    "shmat",
    "msgget",
    "semget",
    "mq_open",
    "keyctl",
    "add_key",
    "request_key",
    "io_uring_setup",
    "userfaultfd",
    "bpf",
    "perf_event_open",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "memfd_create",
    "inotify_init1",
    "fanotify_init",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mknod",
    "mknodat",
    "mkdir",
    "mkdirat",
    "openat2",
    "open_by_handle_at",
    "setuid",
    "setgid",
    "seccomp",
    "tkill",
    "rt_sigqueueinfo",
    "pidfd_open",
    "pidfd_send_signal",
    "truncate",
    "flock",
    "personality",
]


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_are_those_of_the_headers_of_the_kernel(machine):
    file = next((Path(name) for name in HEADERS[machine] if Path(name).is_file()), None)
    if file is None:
        pytest.skip("this system has no headers of the kernel")
    told = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text())}
    ours = known(machine) | numbers(ways._CALLS, machine)
    names = OTHER_NAMES if machine == "aarch64" else {}
    checked = {name: number for name, number in ours.items() if names.get(name, name) in told}
    assert len(checked) > 100
    assert {name: told[names.get(name, name)] for name in checked} == checked
    assert {name for name in ours if name not in checked} <= {  # younger than some headers
        *("map_shadow_stack", "mseal", "futex_wake", "futex_wait", "futex_requeue", "futex_waitv")
    }
    for name in FORBIDDEN:
        assert told.get(name) not in allowed(machine, may_write=True), name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_call_numbers_are_unique_and_readers_may_make_fewer_calls(machine):
    rows = [numbers(table, machine) for table in (calls._ALLOWED, calls._WRITING, calls._ARGUMENT_FILTERED, calls._OWN)]
    flat = [number for row in rows for number in row.values()]
    assert len(flat) == len(set(flat))
    assert allowed(machine, may_write=False) < allowed(machine, may_write=True)
    for may_write in (False, True):  # a call is allowed whatever its arguments are, or bounded
        assert not {bound.number for bound in bounds(machine, may_write)} & allowed(machine, may_write)
