"""Limits that a process sets for itself before it reads an untrusted file: memory, written bytes, time, files."""

from __future__ import annotations

import resource
from pathlib import Path

MOST_FILES = 256  # open files; few are needed, and no process limit counts the memory in pipes


def address_space() -> int:
    """Return the bytes of address space that this process uses, or 0 if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return 0
    return pages * resource.getpagesize()


def limit(kind: int, value: int) -> None:
    """Set the soft and the hard limit, so that the process cannot raise it again."""
    hard = resource.getrlimit(kind)[1]
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (most, most))


def limit_process(memory: int, written: int, seconds: int) -> None:
    """Limit this process. Call it after all imports.

    Args:
        memory: bytes of address space beyond what is in use now.
        written: bytes of each file that it writes.
        seconds: processor time.
    """
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, written)
    limit(resource.RLIMIT_CPU, seconds)
    limit(resource.RLIMIT_NOFILE, MOST_FILES)
    if used := address_space():
        limit(resource.RLIMIT_AS, used + memory)
