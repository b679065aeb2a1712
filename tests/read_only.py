"""Folders that the tests can read and not write, also where they run as root."""

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_VERSION = 0x20080522  # of capset(2)
_DAC_OVERRIDE = 1  # the bit of root's capability to write to any file; the right to read any is another


@contextlib.contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Remove the write permission of a tree, and root's capability to ignore it.

    The process stays the same user, so that it can still read our package in a clone that others cannot reach.
    """
    paths = [path for path in (root, *root.rglob("*")) if not path.is_symlink()]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes):
        path.chmod(mode & 0o555)
    try:
        with _without_override() if os.geteuid() == 0 else contextlib.nullcontext():
            yield
    finally:
        for path, mode in zip(paths, modes):
            path.chmod(mode)


@contextlib.contextmanager
def _without_override() -> Iterator[None]:
    """Drop the effective capability of this thread, and of those that it starts."""
    system, head = ctypes.CDLL(None, use_errno=True), struct.pack("Ii", _VERSION, 0)
    held = ctypes.create_string_buffer(struct.calcsize("6I"))
    if system.capget(head, held):
        raise OSError(ctypes.get_errno(), "capget")
    effective, *others = struct.unpack("6I", held.raw)
    if system.capset(head, struct.pack("6I", effective & ~(1 << _DAC_OVERRIDE), *others)):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        system.capset(head, held)
