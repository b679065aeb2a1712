"""Files and folders that settings name: opened by methods, hashed for the key of a run, with one rule for both."""

from __future__ import annotations

from pathlib import Path


def expand_path(text: str) -> Path:
    """Expand a leading `~` in a setting's path; shells expand it at the start of a word only."""
    return Path(text).expanduser()


def list_files(folder: Path) -> list[Path]:
    """List every file below a folder, in reading order."""
    return sorted(file for file in folder.rglob("*") if file.is_file())
