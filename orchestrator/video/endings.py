"""The endings of video files: one list for importers, folders that are searched, and messages.

An ending only finds a file. Its first bytes decide which container it is (container.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# Where several files of a folder have one name, the first ending of this list goes first
VIDEO_SUFFIXES = (
    *(".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".qt", ".3gp", ".3g2", ".f4v", ".divx", ".xvid", ".mk3d"),
    *(".flv", ".wmv", ".asf", ".ogv", ".ogm", ".ogg", ".mpg", ".mpeg", ".mpe", ".m2p", ".vob", ".mod", ".tod"),
    *(".ts", ".mts", ".m2ts", ".m2t", ".mt2s"),
)


def is_video_name(name: str) -> bool:
    """Report whether a file name has the ending of a video and is not hidden (`._v0.mp4` of a Mac)."""
    return name.lower().endswith(VIDEO_SUFFIXES) and not name.startswith(".")


class Found(NamedTuple):
    """What a folder and the folders below it contain, by name; hidden files and hidden folders are left out."""

    videos: list[Path]  # by their endings; links to nowhere and devices among them
    others: int  # files with other endings
    unreadable: list[OSError]  # of folders that cannot be listed


def find_videos(folder: Path) -> Found:
    """List the videos in a folder and below it; linked folders below it are not entered."""
    unreadable: list[OSError] = []
    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    videos = sorted(file for file in files if is_video_name(file.name))
    return Found(videos, len(files) - len(videos), unreadable)
