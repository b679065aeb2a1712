"""The isolation of a child that reads a file of somebody else: its files, its network, its system calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctvr.sandbox.restrict import drop_privileges, isolate_network, restrict_files
from ctvr.sandbox.system_calls import leave_calls


@dataclass(frozen=True)
class Isolation:
    """The means that hold a process: `files` as `restrict_files` returns it, own network, filter of system calls."""

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
    files, network = restrict_files(readable, writable), isolate_network()  # root needs its rights for both
    drop_privileges()
    return Isolation(files, network, leave_calls(may_write=bool(writable)))
