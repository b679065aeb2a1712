"""Isolation of a child process that reads an untrusted file: its files, its network, its system calls."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctvr.sandbox.restrict import drop_privileges, isolate_network, landlock, restrict_files
from ctvr.sandbox.system_calls import leave_calls

PERMIT = "CTVR_WITHOUT_LANDLOCK"  # environment variable with which the user permits reading without Landlock
FAULT = "this kernel has no Landlock, or the container forbids it: a reader of videos or pickles could read your files"
REMEDY = f"Use Linux 5.13 or newer, or set {PERMIT}=1 and read only files that you trust."


class NoLandlock(ValueError):
    """Landlock is unavailable, and the user has not permitted reading files without it. The message is one line."""


@dataclass(frozen=True)
class Isolation:
    """The active restrictions: the Landlock version that restricts files (0 if none), network and system calls."""

    files: int
    network: bool
    calls: bool


def is_permitted() -> bool:
    """Return whether the user permits reading untrusted files without Landlock."""
    return os.environ.get(PERMIT) == "1"


def require_landlock() -> None:
    """Refuse to start a child that could not be isolated.

    Raises:
        NoLandlock: unless the kernel has Landlock, or the user permits reading without it.
    """
    _require(landlock())


def isolate(readable: Iterable[str | Path], writable: Iterable[str | Path] = ()) -> Isolation:
    """Isolate this single-threaded process by every mechanism of the system. This cannot be undone.

    Args:
        readable: files, and folders with all their content. Paths that do not exist are left out.
        writable: folders.

    Returns:
        The active restrictions. If the system refuses the network isolation or the call filter, the other restrictions
        still apply.

    Raises:
        NoLandlock: if files are not restricted, unless the user permits that.
    """
    writable = list(writable)
    files, network = restrict_files(readable, writable), isolate_network()  # root needs its privileges for both
    _require(files)
    drop_privileges()
    return Isolation(files, network, leave_calls(may_write=bool(writable)))


def _require(version: int) -> None:
    if not version and not is_permitted():
        raise NoLandlock(f"sandbox: {FAULT}. {REMEDY}")
