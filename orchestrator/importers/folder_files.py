"""Files of a published data set in one folder, found by their usual names, and its lists of IDs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Captions
from ctvr.orchestrator.importers.captions import read_lines
from ctvr.orchestrator.streams.stream import SPLITS
from ctvr.orchestrator.streams.videos import video_stem

TEXTS = (".json", ".jsonl", ".txt", ".csv", ".tsv")  # files that may hold captions, questions or IDs
MOST_NAMED = 20
_WITHOUT_CAPTIONS = re.compile("private_?test|blind_?test|without_annotations")  # files of challenges


class FolderFiles:
    """Files of one data set, found by their known names, with a record of the files that were used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = sorted(path.name for path in folder.iterdir() if path.is_file())
        self.used: list[Path] = []

    def find(self, *patterns: str) -> Path | None:
        """Return the file that matches the first pattern with a match, ignoring letter case."""
        names = [name for name in self.names if not _WITHOUT_CAPTIONS.search(name.lower())]
        for pattern in patterns:
            fits = [name for name in names if fnmatch.fnmatchcase(name.lower(), pattern)]
            if len(fits) > 1:
                raise ConfigError(f"{self.folder}: {fits[0]} and {fits[1]} both match {pattern}. Keep one of them.")
            if fits:
                path = self.folder / fits[0]
                self.used += [path] if path not in self.used else []
                return path
        return None

    def need(self, *patterns: str) -> Path:
        """Return the file that `find` returns.

        Raises:
            ConfigError: if no file matches.
        """
        path = self.find(*patterns)
        if path is None:
            hidden = [name for name in self.names if _WITHOUT_CAPTIONS.search(name.lower())]
            said = f" ({hidden[0]} has no captions)" if hidden else ""
            raise ConfigError(
                f"no file matches {' or '.join(patterns)}{said}", self.folder, remedy="Add the data set's file."
            )
        return path

    def unread(self) -> list[str]:
        """Return the names of the folder's text files that were not used."""
        used = {path.name for path in self.used}
        return [name for name in self.names if name.lower().endswith(TEXTS) and name not in used]


def describe_unread(names: list[str]) -> list[str]:
    """Return the report's line about text files that an import did not read; [] if it read all."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"Not read: {', '.join(names[:MOST_NAMED])}{more}."] if names else []


def keep_listed(files: FolderFiles, found: Mapping[str, Captions]) -> dict[str, Captions]:
    """Keep the videos of `<split>_list.txt` in their order: an ID per line, with or without a video extension.

    A list may name videos of another split's file: papers on VATEX test on videos published for validation. A split
    without a list keeps all its videos that no other list names.

    Raises:
        ConfigError: if a list is empty, or one of its IDs has no caption or is ambiguous.
    """
    lists = {split: path for split in SPLITS if (path := files.find(f"{split}_list.txt"))}
    kept = {split: _listed(path, split, found) for split, path in lists.items()}
    moved = {video for captions in kept.values() for video in captions}
    rest = {
        split: {video: texts for video, texts in captions.items() if video not in moved}
        for split, captions in found.items()
    }
    return {split: kept.get(split, rest.get(split, {})) for split in SPLITS}


def _listed(path: Path, split: str, found: Mapping[str, Captions]) -> Captions:
    own_first = sorted(found, key=lambda other: other != split)
    sources = [(found[other], _by_stem(found[other])) for other in own_first]
    kept: Captions = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not (video := line.strip()):
            continue
        for captions, stems in sources:
            fits = [video] if video in captions else stems.get(video_stem(video), [])
            if len(fits) == 1:
                kept[fits[0]] = captions[fits[0]]
            if fits:
                break
        if len(fits) != 1:
            many = f"matches {' and '.join(fits[:3])}" if fits else "has no caption"
            raise ConfigError(
                f"line {number}: {video!r} {many}", path, remedy="Use the list that belongs to the captions."
            )
    if not kept:
        raise ConfigError("contains no id", path, remedy="Add one per line, or remove the file to keep all videos.")
    return kept


def _by_stem(captions: Captions) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for video in captions:
        found.setdefault(video_stem(video), []).append(video)
    return found
