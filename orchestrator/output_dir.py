"""A new folder for what a command writes, made before anything costs time."""

from __future__ import annotations

from pathlib import Path

from ctvr.orchestrator.errors import ConfigError


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds something, or is a file.

    Raises:
        ConfigError: with what to name instead.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there and not empty. Name another folder.")


def create_output_dir(folder: Path) -> None:
    """Make it, where it may be made.

    Raises:
        ConfigError: as `check_new`, and where nothing can be written.
    """
    require_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}). Name another folder.") from error
