"""Files and folders that settings name: opened by methods, digested for the key of a run. One rule for both."""

from __future__ import annotations

from pathlib import Path


def expand_path(text: str) -> Path:
    """The file or folder that a setting names; `~` is the home folder, which shells expand at times only."""
    return Path(text).expanduser()


def list_files(folder: Path) -> list[Path]:
    """Every file below a folder, in the order in which they are read."""
    return sorted(file for file in folder.rglob("*") if file.is_file())
