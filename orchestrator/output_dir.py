"""Output folder of a command, created before the slow work."""

from __future__ import annotations

from pathlib import Path

from ctvr.orchestrator.errors import ConfigError


def require_empty(folder: Path) -> None:
    """Refuse a folder that is not empty, or is a file.

    Raises:
        ConfigError: if it is.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: already exists and is not empty. Give another folder.")


def create_output_dir(folder: Path) -> None:
    """Create an output folder.

    Raises:
        ConfigError: as `require_empty`, and if the folder cannot be created.
    """
    require_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}). Give another folder.") from error
