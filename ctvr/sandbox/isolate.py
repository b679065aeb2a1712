"""Isolation of a child process that reads an untrusted file: its files, its network, its system calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctvr.sandbox.restrict import drop_privileges, isolate_network, restrict_files
from ctvr.sandbox.system_calls import leave_calls


@dataclass(frozen=True)
class Isolation:
    """The active restrictions: of `files` (as `restrict_files` returns it), of the network and of system calls."""

    files: str
    network: bool
    calls: bool


def isolate(readable: Iterable[str | Path], writable: Iterable[str | Path] = ()) -> Isolation:
    """Isolate this single-threaded process by every mechanism of the system. This cannot be undone.

    Args:
        readable: files, and folders with all their content. Paths that do not exist are left out.
        writable: folders.

    Returns:
        The active restrictions. If the system refuses one, the others still apply.
    """
    writable = list(writable)
    files, network = restrict_files(readable, writable), isolate_network()  # root needs its privileges for both
    drop_privileges()
    return Isolation(files, network, leave_calls(may_write=bool(writable)))
