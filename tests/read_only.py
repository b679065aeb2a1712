"""Folders that the tests can read and not write, also where they run as root."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Remove the write permission of a tree, and root's privileges of this process."""
    paths = [path for path in (root, *root.rglob("*")) if not path.is_symlink()]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes):
        path.chmod(mode & 0o555 | (0o555 if path.is_dir() else 0o444))
    user = os.geteuid()
    try:
        if not user:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        for path, mode in zip(paths, modes):
            path.chmod(mode)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
