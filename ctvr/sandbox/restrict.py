"""Restrictions of a process that reads an untrusted file: no network, and only the files that it is given.

The kernel enforces both, and they cannot be removed from inside. A process sets them before it has threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000  # of unshare(2): new user and network namespaces
_CAPABILITIES = 0x20080522  # version of capset(2)
_READ_SEARCH = 1 << 2  # the only capability that root keeps, to read files of other users
_ROOT_OF_OURS = Path(__file__).resolve().parents[2]
_PACKAGES = ("ctvr", "orchestrator", "methods", "search_spaces")
_NO_NEW_PRIVILEGES = 38  # option of prctl(2) that Landlock requires
# landlock(7): system calls, and access rights to files as bits
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8, 1 << 14
_RIGHTS = {
    1: (1 << 13) - 1,
    2: (1 << 14) - 1,
    3: (1 << 15) - 1,
    5: (1 << 16) - 1,
    9: (1 << 17) - 1,
}  # supported from this version on; 9: sockets with a path
_TCP = 0b11  # bind and connect, from version 4 on
_SCOPES = 0b11  # abstract sockets and signals of processes outside, from version 6 on
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/sys/devices/system"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/dev/urandom", "/dev/null", "/dev/zero"),
)


def isolate_network() -> bool:
    """Give this process an empty network namespace; return False if the system refuses.

    Other users than root also need a new user namespace, and a process without threads.
    """
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):  # not Linux
        return False
    return unshare(_NEWNET) == 0 or unshare(_NEWUSER | _NEWNET) == 0


def drop_privileges() -> bool:
    """Drop root's capabilities, except reading files of other users; return False if the system refuses.

    The dropped capabilities include raising a hard limit again and locking memory pages.
    """
    try:
        system = ctypes.CDLL(None, use_errno=True)
        head, words = struct.pack("Ii", _CAPABILITIES, 0), ctypes.create_string_buffer(24)
        if system.capget(head, words):
            return False
        kept = struct.unpack("6I", words.raw)[0] & _READ_SEARCH
        return bool(system.capset(head, struct.pack("6I", kept, kept, 0, 0, 0, 0)) == 0)
    except (OSError, AttributeError):  # not Linux
        return False


def restrict_files(readable: Iterable[str | Path], writable: Iterable[str | Path] = ()) -> int:
    """Let this process read `readable`, Python and the system's libraries, and write in `writable`, by Landlock.

    Landlock also forbids starting programs.

    Args:
        readable: files, and folders with all their content. Paths that do not exist are left out.
        writable: folders.

    Returns:
        The version of Landlock that restricts the process, or 0 if nothing does.
    """
    if not (version := landlock()):
        return 0
    system = ctypes.CDLL(None, use_errno=True)
    handled = next(rights for known, rights in sorted(_RIGHTS.items(), reverse=True) if known <= version)
    words = [handled, *([_TCP] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    wanted = struct.pack(f"{len(words)}Q", *words)
    rules = system.syscall(_CREATE_RULESET, wanted, ctypes.c_size_t(len(wanted)), 0)
    if rules < 0:
        return 0
    try:
        reads = _READ_FILE | _READ_DIR
        writes = (reads | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE) & handled
        for path, rights in [*((p, reads) for p in (*_python(), *readable)), *((p, writes) for p in writable)]:
            with contextlib.suppress(OSError):  # does not exist
                _allow(system, rules, Path(path), rights)
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return version if system.syscall(_RESTRICT_SELF, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def landlock() -> int:
    """Return the kernel's Landlock version, or 0 if it is missing, disabled, or unavailable in this container."""
    if sys.platform != "linux":  # elsewhere the number belongs to another call
        return 0
    try:
        version = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION)
    except (OSError, AttributeError):
        return 0
    return max(0, int(version))


def _allow(system: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = rights if path.is_dir() else rights & ~_READ_DIR
        rule = struct.pack("=Qi", rights, place)
        system.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def _python() -> Iterator[str]:
    """Yield the folders of this interpreter and its libraries, except the current folder and parents of the home.

    A checkout contains more than our packages, such as runs and the user's notes, so only our packages are readable.
    """
    yield from _SYSTEM
    home, here = Path.home().resolve(), Path.cwd()
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for path in {sys.prefix, sys.base_prefix, *sys.path, *libraries}:
        place = Path(path).resolve()
        if (
            place == _ROOT_OF_OURS and (place / "pyproject.toml").is_file()
        ):  # otherwise it also contains other libraries
            yield from (str(place / name) for name in _PACKAGES)
        elif path and place != here and not home.is_relative_to(place):
            yield path
