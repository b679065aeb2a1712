"""Output folders of commands: checked with the arguments, created before the slow work."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError


def require_empty(folder: Path) -> None:
    """Refuse a folder that is not empty, or is a file.

    Raises:
        ConfigError: if the folder is not empty, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: already exists and is not empty. Give another folder.")


def create_output_dir(folder: Path) -> None:
    """Create an output folder.

    Raises:
        ConfigError: if the folder is not empty, is a file, or cannot be created.
    """
    require_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}). Give another folder.") from error


def check_creatable(folder: Path, option: str) -> None:
    """Check that a folder can be written, or created where it does not exist. Nothing is created.

    Raises:
        ConfigError: if it cannot; the message names `option`.
    """
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder.absolute())):
            pass
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option} {folder}: cannot be written ({reason}). Choose another folder.") from error


def publish(path: Path, content: bytes) -> Path:
    """Write a file atomically; if the disk is full, no partial file is left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def write_in_runs(path: Path, content: bytes) -> None:
    """Write a file in the runs folder atomically, and create its parent folders.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Give another --runs folder.") from error


def _nearest(folder: Path) -> Path:
    """Return the folder, or its closest existing parent. A dangling link counts as existing."""
    for path in (folder, *folder.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
            return path
    return folder
