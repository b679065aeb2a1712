"""Expansion of paths in settings, shared by methods, which open the files, and the run key, which hashes the files."""

from __future__ import annotations

from pathlib import Path


def expand_path(text: str) -> Path:
    """Return a path with its leading `~` expanded, because shells expand it only at the start of an argument."""
    return Path(text).expanduser()


def list_files(folder: Path) -> list[Path]:
    """Return the paths of all files in a folder and its subfolders, sorted."""
    return sorted(file for file in folder.rglob("*") if file.is_file())
