"""Finding a stream's video files, reporting missing files, and dropping their items."""

from __future__ import annotations

import dataclasses
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path

from ctvr.orchestrator.digests import Identity, identity_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import gc_disabled
from ctvr.orchestrator.streams.stream import SPLITS, Item, Segment, Stream, StreamTask, iter_items
from ctvr.orchestrator.video.endings import VIDEO_SUFFIXES

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
# Folder names in Hugging Face's VideoFolder layout (jobs/export_dataset.py, importers/hf_dataset.py)
FOLDERS = {"train": "train", "val": "validation", "test": "test"}  # split -> folder
METADATA, STREAM = "metadata.jsonl", "stream.json"


class VideoPlaces:
    """Index that finds a video by its path, with another extension, or as a folder of frames.

    Each folder is listed once.

    Names are compared in Unicode's form NFC, since macOS may store accents as separate characters.
    """

    def __init__(self, base: Path) -> None:
        self.base = os.path.abspath(base)
        self.listed: dict[str, tuple[str, dict[str, str]]] = {}  # folder as written -> (path, `by_name`)

    def find(self, path: str) -> str:
        """Return the location of `path`, or its expected location if nothing exists there."""
        below, _, name = path.rpartition("/")
        known = self.listed.get(below)
        if known is None:
            known = self.listed[below] = self._list(below or ("/" if path.startswith("/") else ""))
        folder, names = known
        if name in names:
            return folder + names[name]
        stem = normalize_name(video_stem(name))
        others = (stem + end for suffix in VIDEO_SUFFIXES for end in (suffix, suffix.upper()))
        found = next((names[other] for other in (normalize_name(name), *others, stem) if other in names), name)
        return folder + found

    def _list(self, below: str) -> tuple[str, dict[str, str]]:
        folder = os.path.join(self.base, below)
        return os.path.join(folder, ""), by_name(os.listdir(folder)) if os.path.isdir(folder) else {}


def picture_of(item: Item, places: VideoPlaces | None = None) -> tuple[str, Segment | None]:
    """Return the file and segment from which pages take images of an item; the file is "" if none exists.

    Args:
        places: index of the folder with the videos of a stream of features, which are found by their IDs.
    """
    if not item.path.endswith(".npy"):  # "" in a saved gallery
        is_here = not item.path or os.path.exists(item.path)
        return item.path if is_here else VideoPlaces(Path("/")).find(item.path), item.segment
    file = places.find(item.video) if places is not None else ""
    return file if os.path.exists(file) else "", None


def normalize_name(name: str) -> str:
    """Return a name in Unicode's form NFC (accented letters as one character)."""
    return unicodedata.normalize("NFC", name)


def by_name(names: Iterable[str]) -> dict[str, str]:
    """Return a dictionary that maps each name and its NFC form to the name."""
    exact = {name: name for name in names}
    return {normalize_name(name): name for name in exact} | exact


def video_stem(name: str) -> str:
    """Strip a video extension from a file name; any other text after a dot is kept as part of the ID."""
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in VIDEO_SUFFIXES else name


@gc_disabled()
def scan_videos(stream: Stream) -> dict[str, Identity]:
    """Return the identity of every file of a stream. Each is queried once, because a stream may have 100,000 files.

    Anything that is not a file (missing, or a folder of frames) is left out.
    """
    seen: dict[str, Identity] = {}
    for path in dict.fromkeys(item.path for _, _, item in iter_items(stream)):
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            seen[path] = identity_of(status)
    return seen


def _is_there(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISDIR(mode):
        with os.scandir(path) as entries:
            return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries)
    return stat.S_ISREG(mode)


def missing_videos(stream: Stream, seen: Container[str] | None = None) -> list[Item]:
    """Return the items without a file (under this or another extension) and without a folder of frames.

    Args:
        seen: paths of existing files; default: the result of `scan_videos`.
    """
    seen = scan_videos(stream) if seen is None else seen
    find = VideoPlaces(Path("/")).find  # the items' paths are absolute
    return [item for _, _, item in iter_items(stream) if item.path not in seen and not _is_there(find(item.path))]


def check_videos(stream: Stream) -> str:
    """Report which videos are missing and how a smaller gallery would change the numbers."""
    missing = {item.video for item in missing_videos(stream)}
    total = Counter(split for _, split, _ in iter_items(stream))
    if not missing:
        return f"{stream.name}: all {total.total()} videos are in place."
    places = [(task.name, split, item) for task, split, item in iter_items(stream) if item.video in missing]
    lost = Counter(split for _, split, _ in places)
    lines = [
        f"{stream.name}: {len(places)} of {total.total()} videos are missing ("
        + ", ".join(f"{split} {lost[split]} of {total[split]}" for split in SPLITS if total[split])
        + ").",
        "First: " + ", ".join(f"{item.video} ({task} {split})" for task, split, item in places[:5]) + ".",
        f"Searched for {places[0][2].path}, other extensions of videos ({' '.join(VIDEO_SUFFIXES)}), and a "
        "folder of frames of that name.",
    ]
    if 0 < lost["test"] < total["test"]:
        left = total["test"] - lost["test"]
        lines.append(
            f"Without them the test gallery shrinks from {total['test']} to {left} videos. R@k rises as the gallery "
            "shrinks, so the numbers are not comparable with the paper."
        )
    lines.append("Add the files, or drop these videos with data.skip_missing=true; tables are then marked.")
    return "\n".join(lines)


def drop_videos(stream: Stream, missing: Iterable[Item]) -> Stream:
    """Return the stream without some items, as the user requested (`data.skip_missing=true`).

    The result has a different digest, records the number of dropped videos, and is not compared with a paper.

    Raises:
        ConfigError: if a task would keep no train, test or (if it had some) validation video.
    """
    gone = {item.video for item in missing}
    if not gone:
        return stream
    tasks = []
    for task in stream.tasks:
        kept: dict[str, tuple[Item, ...]] = {}
        for split in SPLITS:
            items = getattr(task, split)
            kept[split] = tuple(
                dataclasses.replace(item, twin=None) if item.twin in gone else item
                for item in items
                if item.video not in gone
            )
            if items and not kept[split]:
                raise ConfigError(
                    f"all {len(items)} {split} videos of {task.name} in {stream.name} are missing, the first "
                    f"at {items[0].path}",
                    "data.skip_missing",
                    remedy="Correct the videos folder.",
                )
        tasks.append(StreamTask(task.name, task.categories, **kept))
    dropped = sum(item.video in gone for _, _, item in iter_items(stream))
    captions = sum(len(item.captions) for task in stream.tasks for item in task.test if item.video in gone)
    dropped, captions = stream.dropped + dropped, stream.lost_captions + captions
    return dataclasses.replace(stream, tasks=tuple(tasks), paper=None, dropped=dropped, lost_captions=captions)
