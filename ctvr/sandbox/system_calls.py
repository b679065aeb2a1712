"""A seccomp filter that allows only the system calls of a file reader: files, memory, threads and time.

The filter lists the allowed calls, so that calls of later kernels are also blocked. Everything else fails with EPERM.
Calls that are newer than Linux 5.1 fail with ENOSYS, as on an older kernel, and libraries then fall back to older calls
(clone3, whose flags a filter cannot read, becomes clone). On another architecture, including x32, every
call fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Iterator

from ctvr.sandbox.calls import ARCHITECTURES, SINCE_5_1, Bound, allowed, bounds, known

_NO_NEW_PRIVILEGES = 38  # option of prctl(2) that seccomp requires
_SET_FILTER, _ALL_THREADS = 1, 1  # arguments of seccomp(2)
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument has 8 bytes
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # return values of a filter; _FAIL plus an error number
_LOAD, _AND, _EQUAL, _AT_LEAST, _ABOVE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x25, 0x06  # codes of classic BPF


def leave_calls(may_write: bool = False) -> bool:
    """Forbid this process and its threads all system calls except those of a file reader, permanently.

    Args:
        may_write: whether it may open files for writing, rename and delete them. The filter cannot restrict which
            files.

    Returns:
        False if the architecture is unknown, or the system lacks seccomp or refuses it. Then no call is blocked.
    """
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in ARCHITECTURES or sys.byteorder != "little":
        return False
    program = b"".join(_program(machine, may_write))
    words = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HP", len(program) // 8, ctypes.addressof(words))
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return bool(system.syscall(known(machine)["seccomp"], _SET_FILTER, _ALL_THREADS, head) == 0)


def _program(machine: str, may_write: bool) -> Iterator[bytes]:
    """Yield the BPF instructions of the filter."""
    yield _word(_LOAD, _ARCHITECTURE)
    yield _word(_EQUAL, ARCHITECTURES[machine], 1, 0)
    yield _word(_RETURN, _FAIL | errno.EPERM)
    yield _word(_LOAD, _NUMBER)
    for first, last in _runs(allowed(machine, may_write)):
        yield _word(_AT_LEAST, first, 0, 2)
        yield _word(_ABOVE, last, 1, 0)
        yield _word(_RETURN, _ALLOW)
    for bound in bounds(machine, may_write):
        block = list(_bounded(bound))
        yield _word(_EQUAL, bound.number, 0, len(block))
        yield from block
    yield _word(_AT_LEAST, SINCE_5_1, 0, 1)
    yield _word(_RETURN, _FAIL | errno.ENOSYS)
    yield _word(_RETURN, _FAIL | errno.EPERM)


def _bounded(bound: Bound) -> Iterator[bytes]:
    yield _word(_LOAD, _ARGUMENTS + 8 * bound.argument)
    yield _word(_AND, bound.mask)
    for value in bound.values:
        yield _word(_EQUAL, value, 0, 1)
        yield _word(_RETURN, _ALLOW)
    yield _word(_RETURN, _FAIL | errno.EPERM)


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of runs of consecutive numbers."""
    first = last = None
    for number in sorted(numbers):
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last


def _word(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one BPF instruction; jump targets are numbers of instructions to skip."""
    return struct.pack("HBBI", code, if_true, if_false, value)
