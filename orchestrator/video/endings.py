"""Extensions of video files: one list for importers, searched folders and messages.

An extension only finds a file. Its first bytes decide which container it is (container.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# If several files in a folder share a name, the extension that is first in this list takes precedence
VIDEO_SUFFIXES = (
    *(".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".qt", ".3gp", ".3g2", ".f4v", ".divx", ".xvid", ".mk3d"),
    *(".flv", ".wmv", ".asf", ".ogv", ".ogm", ".ogg", ".mpg", ".mpeg", ".mpe", ".m2p", ".vob", ".mod", ".tod"),
    *(".ts", ".mts", ".m2ts", ".m2t", ".mt2s", ".h264", ".264", ".avc", ".h265", ".265", ".hevc", ".m1v", ".m2v"),
    *(".mpv", ".dv", ".mj2", ".gif"),
)


def is_video_name(name: str) -> bool:
    """Report whether a file name has the extension of a video and is not hidden (`._v0.mp4` of a Mac)."""
    return name.lower().endswith(VIDEO_SUFFIXES) and not name.startswith(".")


class Found(NamedTuple):
    """The content of a folder and its subfolders, sorted by name; hidden files and hidden folders are left out."""

    videos: list[Path]  # files with a video extension; includes broken links and devices
    others: int  # files with other extensions
    unreadable: list[OSError]  # errors of folders that cannot be listed


def find_videos(folder: Path) -> Found:
    """List the videos in a folder and its subfolders; linked subfolders are not followed."""
    unreadable: list[OSError] = []
    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    videos = sorted(file for file in files if is_video_name(file.name))
    return Found(videos, len(files) - len(videos), unreadable)
