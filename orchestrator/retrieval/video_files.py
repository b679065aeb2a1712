"""Videos of the user that a model searches: files, or a folder of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ctvr.orchestrator.console import count, printable
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.video.endings import VIDEO_SUFFIXES, find_videos

log = logging.getLogger(__name__)

Videos = str | Path | Sequence[str | Path]  # a folder, a file or files


def _paths(videos: Videos) -> list[Path]:
    return [Path(each).expanduser() for each in ([videos] if isinstance(videos, str | Path) else videos)]


def is_folder(videos: Videos) -> bool:
    """Return whether the user names one folder."""
    paths = _paths(videos)
    return len(paths) == 1 and paths[0].is_dir()


def videos_of(videos: Videos) -> tuple[Item, ...]:
    """Return files as items; a folder means the videos in it and its subfolders, sorted by name.

    Hidden files and folders (`._v0.mp4` of a Mac) and broken links are left out of a folder.

    Raises:
        ConfigError: if a file does not exist, or the folder contains no video.
    """
    paths = _paths(videos)
    if is_folder(videos):
        folder = paths[0]
        found = find_videos(folder)
        paths = [path for path in found.videos if path.is_file()]
        if found.unreadable:
            log.warning("videos: %d folders cannot be read, the first: %s", len(found.unreadable), found.unreadable[0])
        if not paths:
            raise ConfigError(
                f"{folder} contains no video: none of its {len(found.videos) + found.others} files ends in "
                f"{' '.join(VIDEO_SUFFIXES)}.",
                "videos",
            )
        if found.others:
            log.info("videos: %s without a video extension in %s", count(found.others, "file"), folder)
        names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
        return tuple(Item(printable(name), str(path.resolve()), None, "", ()) for name, path in zip(names, paths))
    if missing := [path for path in paths if not path.is_file()]:
        raise ConfigError(f"{missing[0]} is not a file or a folder of videos.", "videos")
    if not paths:
        raise ConfigError("the list is empty", "videos", remedy="Pass a folder or files.")
    return tuple(Item(printable(path.stem), str(path.resolve()), None, "", ()) for path in paths)
