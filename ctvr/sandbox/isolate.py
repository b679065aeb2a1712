"""The isolation of a child that reads a file of somebody else: its files, its network, its system calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctvr.sandbox.fence import leave_files, leave_network, leave_rights
from ctvr.sandbox.system_calls import leave_calls


@dataclass(frozen=True)
class Isolation:
    """The means that hold a process: `files` as `leave_files` returns it, an own network, a filter of system calls."""

    files: str
    network: bool
    calls: bool


def isolate(readable: Iterable[str | Path], writable: Iterable[str | Path] = ()) -> Isolation:
    """Isolate this process, which has no threads yet, by every means that the system has; nothing is taken back.

    Args:
        readable: files, and folders with all that is in them. What does not exist is left out.
        writable: folders.

    Returns:
        What holds it now. Where the system refuses one of the means the others stand.
    """
    writable = list(writable)
    files, network = leave_files(readable, writable), leave_network()  # root needs its rights for both
    leave_rights()
    return Isolation(files, network, leave_calls(may_write=bool(writable)))
