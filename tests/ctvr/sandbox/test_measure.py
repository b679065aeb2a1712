"""Every way out of a child is tried: it is open without a sandbox and closed in it."""

import os

import pytest

from ctvr.sandbox.calls import ARCHITECTURES
from ctvr.sandbox.restrict import landlock
from tests.ctvr.sandbox.measure import ALWAYS, EVERY, measure

# What a system refuses its users, or all who are in a container, without any sandbox
SELDOM = {
    *("raise a limit of its own", "read next to our packages"),  # for some of root; a wheel has nothing there
    *(
        "another root",
        "mounts",
        "namespaces",
        "watch a file system",
        "handle of a file",
        "flags of a file that may be read",
    ),
    *(
        "extended attributes of a file",
        "attributes of a file that may be read",
        "trace a process",
        "memory of a process",
    ),
    *(
        "bpf",
        "perf_event_open",
        "io_uring",
        "userfaultfd",
        "keyrings",
        "POSIX queues",
        "lease of a file that may be read",
    ),
}
OF_FILES = {
    "read next to our packages",
    "raise a limit of its own",
    "read a file",
    "list a folder",
    "environment of a process",
    "folder of a process",
}


@pytest.fixture(scope="module")
def held():
    if not landlock():
        pytest.skip("this kernel has no Landlock")
    return measure()


def test_every_way_is_open_without_a_sandbox():
    found = measure("none")
    assert not any((found.isolation.files, found.isolation.network, found.isolation.calls))
    assert EVERY - set(found.open) <= SELDOM
    assert len(EVERY) >= 62


def test_a_sandbox_closes_every_way_but_the_sight_of_files(held):
    if not held.isolation.calls:
        pytest.skip("this system has no seccomp")
    assert held.open == ALWAYS


def test_the_filter_alone_closes_all_but_what_reads_files():
    found = measure("calls")
    if not found.isolation.calls:
        pytest.skip("this system has no seccomp, or an architecture that is not known")
    assert set(found.open) <= {*ALWAYS, *OF_FILES}


def test_without_the_filter_what_landlock_cannot_close_is_reported_as_open(held):
    found = measure("files")
    if not found.isolation.files:
        pytest.skip("this kernel has no Landlock")
    assert "read a file" not in found.open
    assert {"mode of a file", "limits of a process", "start a process"} <= set(found.open)


def test_this_system_has_seccomp_where_its_architecture_is_known(held):
    """On a kernel without it the tests above would be skipped unnoticed."""
    if os.uname().machine not in ARCHITECTURES or "seccomp" not in os.listdir("/proc/sys/kernel"):
        pytest.skip("this kernel has no seccomp")
    assert held.isolation.calls
