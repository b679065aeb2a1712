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

_NEWUSER, _NEWNET, _NEWNS = 0x10000000, 0x40000000, 0x20000  # of unshare(2): new user, network and mount namespaces
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE, _DETACH = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18, 2  # flags of (u)mount(2)
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # system call; the C library has no function for it
_ROOT = Path("/tmp")  # mount point of a new tree in memory; nothing is created in the folder below it
_CAPABILITIES = 0x20080522  # version of capset(2)
_READ_SEARCH = 1 << 2  # root keeps only this one, to read files of other users
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


def restrict_files(readable: Iterable[str | Path], writable: Iterable[str | Path] = ()) -> str:
    """Let this process read `readable`, Python and the system's libraries, and write in `writable`.

    Args:
        readable: files, and folders with all their content. Paths that do not exist are left out.
        writable: folders.

    Returns:
        The active mechanism: "Landlock" and its version, "mounts" if the kernel lacks Landlock or refuses it, or "" if
        namespaces are refused too, and nothing is restricted.
    """
    readable, writable = list(readable), list(writable)
    if version := _restrict(readable, writable):
        return f"Landlock {version}"
    return "mounts" if _leave_tree(readable, writable) else ""


def _restrict(readable: list[str | Path], writable: list[str | Path]) -> int:
    """Restrict this process by Landlock, which also forbids starting programs; return its version, or 0."""
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


def _leave_tree(readable: list[str | Path], writable: list[str | Path]) -> bool:
    """Give this process a mount tree with only the given paths; return False if the system refuses.

    Kernels before 5.13 have no Landlock, and most of their systems allow every user to create namespaces. Programs in
    the readable folders can still be started, and outside processes can be signalled. Call it before there are threads.
    """
    number = _PIVOT_ROOT.get(os.uname().machine)
    if sys.platform != "linux" or number is None:
        return False
    system = ctypes.CDLL(None, use_errno=True)
    user, group, here = os.getuid(), os.getgid(), Path.cwd()
    if system.unshare(_NEWUSER | _NEWNS):
        return False
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
        _mount(system, "none", "/", None, _REC | _PRIVATE)
        wanted = {Path(path): False for path in (*_python(), *readable)} | {Path(path): True for path in writable}
        places = {way: may for path, may in wanted.items() for way in (path.absolute(), path.resolve())}
        opened = [(way, may, os.open(way, os.O_PATH)) for way, may in sorted(places.items()) if way.exists()]
        _mount(system, "tmpfs", _ROOT, "tmpfs", 0)
    except OSError:
        return False
    try:
        for way, may_write, source in opened:
            _show(system, _ROOT / way.relative_to("/"), source, may_write)
            os.close(source)
        old = _ROOT / ".old"
        old.mkdir()
        if system.syscall(number, os.fsencode(_ROOT), os.fsencode(old)):
            raise OSError(ctypes.get_errno(), "pivot_root")
    except OSError:
        system.umount2(os.fsencode(_ROOT), _DETACH)
        return False
    os.chdir(here if here.exists() else "/")
    system.umount2(b"/.old", _DETACH)
    Path("/.old").rmdir()
    with contextlib.suppress(OSError):  # only memory of this process stays open
        _mount(system, "none", "/", None, _REMOUNT | _BIND | _RDONLY)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # drop all capabilities in the namespace: read-only mounts cannot be mounted again
    return bool(system.capset(struct.pack("Ii", _CAPABILITIES, 0), struct.pack("6I", *[0] * 6)) == 0)


def _show(system: ctypes.CDLL, place: Path, source: int, may_write: bool) -> None:
    """Bind-mount an open file or folder at a path, which is created unless one of its parents is mounted."""
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(f"/proc/self/fd/{source}").is_dir():
            place.mkdir()
        else:
            place.touch()
    _mount(system, f"/proc/self/fd/{source}", place, None, _BIND | _REC)
    if not may_write:
        kept = os.statvfs(place).f_flag & 0b1110  # nosuid, nodev and noexec must be kept
        _mount(system, "none", place, None, _REMOUNT | _BIND | _RDONLY | kept)


def _mount(system: ctypes.CDLL, source: str, place: str | Path, kind: str | None, flags: int) -> None:
    name = None if kind is None else kind.encode()
    if system.mount(source.encode(), os.fsencode(place), name, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"{place}: {os.strerror(ctypes.get_errno())}")


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
    """Yield the folders of this interpreter and its libraries, except the current one or one that contains the home.

    A checkout contains more than our packages, such as runs and the user's notes, so only our packages are readable.
    """
    yield from _SYSTEM
    home, here = Path.home().resolve(), Path.cwd()
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for path in {sys.prefix, sys.base_prefix, *sys.path, *libraries}:
        place = Path(path).resolve()
        if place == _ROOT_OF_OURS and (place / "pyproject.toml").is_file():  # else it also contains other libraries
            yield from (str(place / name) for name in _PACKAGES)
        elif path and place != here and not home.is_relative_to(place):
            yield path
