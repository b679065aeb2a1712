"""A new folder for what a command writes, made before anything costs time."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something, or is a file.

    Raises:
        ConfigError: with what to name instead.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there and not empty. Name another folder.")


def make_new(folder: Path) -> None:
    """Make it, where it may be made.

    Raises:
        ConfigError: as `check_new`, and where nothing can be written.
    """
    check_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}). Name another folder.") from error
