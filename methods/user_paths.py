"""Files and folders that settings name: opened by methods, hashed for the key of a run, with one rule for both."""

from __future__ import annotations

from pathlib import Path


def expand_path(text: str) -> Path:
    """Expand `~` in a setting's path to the home folder, which shells do not always expand."""
    return Path(text).expanduser()


def list_files(folder: Path) -> list[Path]:
    """List every file below a folder, in reading order."""
    return sorted(file for file in folder.rglob("*") if file.is_file())
