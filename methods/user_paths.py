"""Expansion of paths in settings, equal for methods, which open the files, and the run key, which hashes them."""

from __future__ import annotations

from pathlib import Path


def expand_path(text: str) -> Path:
    """Expand a leading `~` in the path of a setting, because shells expand it only at the start of a word."""
    return Path(text).expanduser()


def list_files(folder: Path) -> list[Path]:
    """List every file below a folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.is_file())
