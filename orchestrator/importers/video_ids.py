"""IDs of videos for which a data set gives no ID, only the names of their files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from ctvr.orchestrator.streams.videos import video_stem


class File(NamedTuple):
    """A video: `path` below the folder of the videos, and `name` as the data set gives it, perhaps with folders.

    `path` and `name` are equal, unless the video was in a shard: it is then written to a file named by its digest.
    """

    path: str
    name: str


def name_videos(files: Iterable[File], taken: Iterable[str]) -> dict[File, str]:
    """Map each file to the first unused ID of: stem, path without suffix, path, STEM-DIGEST, then longer forms.

    Args:
        taken: the IDs of the videos for which the data set gives one.
    """
    names = {file: PurePosixPath(file.name.replace("\\", "/")) for file in files}
    tops: dict[str, set[str]] = defaultdict(set)
    for name in names.values():
        tops[name.stem].add(name.parts[0])
    used, found = set(taken), dict[File, str]()
    choices = {file: _choices(file, name, len(tops[name.stem]) == 1) for file, name in names.items()}
    for ids in zip(*choices.values()):
        left = {file: each for file, each in zip(choices, ids) if file not in found}
        counts = Counter(left.values())
        found |= {file: each for file, each in left.items() if counts[each] == 1 and each not in used}
        used.update(found.values())
    return found


def _choices(file: File, name: PurePosixPath, has_one_top: bool) -> tuple[str, ...]:
    """Return possible IDs, shortest first, without the top folder (a split) if all videos with this stem share it."""
    below = PurePosixPath(*(name.parts[1:] if has_one_top and len(name.parts) > 1 else name.parts))
    path = str(below).lstrip("/")
    return name.stem, video_stem(path), path, f"{name.stem}-{PurePosixPath(file.path).stem[:8]}", file.path, str(file)
