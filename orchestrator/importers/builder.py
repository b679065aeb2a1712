"""Construction of manifests (format: streams/manifest.py) for all importers.

The builder finds and counts the videos, checks the manifest and writes it atomically.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import write_in_runs
from ctvr.orchestrator.streams.captions import correct_encoding, decode_entities
from ctvr.orchestrator.streams.check import check_stream, describe
from ctvr.orchestrator.streams.manifest import FORMAT, parse_manifest
from ctvr.orchestrator.streams.stream import SPLITS, Stream
from ctvr.orchestrator.streams.videos import IMAGE_SUFFIXES, STREAM, normalize_name, video_stem
from ctvr.orchestrator.video.endings import VIDEO_SUFFIXES, is_video_name

Manifest = dict[str, Any]
Captions = dict[str, list[str]]  # video id -> its captions in file order

BACKBONE = {"data.image_size": 224, "backbone.name": "ViT-B-32-quickgelu", "backbone.weights": "openai"}
MAX_NAMED = 4  # files listed in a message
DEPTH = 5  # depth of folders that are searched for videos
MAX_IDS = 1_000_000  # ids per pickle; repeated references to one list could make a small file expand without limit


class VideoFolder:
    """Index of one folder, listed once, that finds the video or the folder of frames of an ID."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ConfigError(f"{folder} is not a folder", "videos", remedy="Pass the folder that contains the videos.")
        self.files: dict[str, str] = {}
        self.frames: dict[str, str] = {}
        self.others: dict[str, str] = {}  # name -> a second file of this name, in another folder
        self.unsure: dict[str, tuple[str, str]] = {}  # requested name that several files have -> two of these files
        for place, folders, names in os.walk(self.folder, followlinks=True):
            inside = os.path.relpath(place, self.folder)
            folders[:] = sorted(folders) if inside.count(os.sep) < DEPTH else []
            if inside != "." and any(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
                self.frames.setdefault(os.path.basename(place), inside)
            for name in sorted(names, key=_by_ending):
                path = os.path.normpath(os.path.join(inside, name))
                stems = (video_stem(name), path) if is_video_name(name) else ()
                for key in (name, *stems):  # a file with exactly the name of an id is used with any extension
                    if os.path.dirname(self.files.setdefault(key, path)) != os.path.dirname(path):
                        self.others.setdefault(key, path)
        for known in (self.files, self.frames):
            for key, path in list(known.items()):
                known.setdefault(normalize_name(key), path)
                known.setdefault(normalize_name(key).strip(), path)  # importers strip the cells of tables

    def find(self, video: str) -> tuple[str, bool]:
        """Return (path below the folder, whether the file contains only the segment); `<id>.mp4` if nothing exists.

        The ID 7010 also matches video7010, because some files of MSR-VTT omit the prefix.
        """
        stem = video_stem(video)
        numbered = f"video{stem}" if stem.isascii() and stem.isdigit() else stem
        places = ((self.files, video), (self.files, stem), (self.frames, stem))
        for known, key in (*places, (self.files, numbered), (self.frames, numbered)):
            path = known.get(key) or known.get(normalize_name(key))
            if path is not None:
                if known is self.files and key in self.others:
                    self.unsure[key] = path, self.others[key]
                return path, False
        if f"{stem}_1" in self.frames:
            return self.frames[f"{stem}_1"], True
        return (video if stem != video else f"{video}.mp4"), False


def _by_ending(name: str) -> tuple[int, str]:
    """Return a sort key that prefers, among files with one ID, the extension listed first in VIDEO_SUFFIXES."""
    suffix = os.path.splitext(name)[1].lower()
    return (VIDEO_SUFFIXES.index(suffix) if suffix in VIDEO_SUFFIXES else len(VIDEO_SUFFIXES), name)


def items_of(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the items of all tasks and splits."""
    return [item for task in manifest["tasks"] for split in SPLITS for item in task[split]]


def empty_task() -> dict[str, Any]:
    return {"name": "", "categories": [], "train": [], "val": [], "test": []}


class Builder:
    """Builder of a manifest: makes its items, then checks and writes it.

    Args:
        videos: the folder of the videos.
        out: file of the manifest; if None, nothing is written.
    """

    def __init__(self, videos: Path, out: Path | None) -> None:
        self.videos = Path(videos)
        self.out = None if out is None else Path(out)
        self.folders: dict[str, VideoFolder] = {}

    def item(
        self, video: str, category: str, captions: list[str], segment: Sequence[float] | None = None, below: str = ""
    ) -> dict[str, Any]:
        """Return an item. With `below`, its ID and its path start with that subfolder of `videos`."""
        if below not in self.folders:
            self.folders[below] = VideoFolder(self.videos / below)
        path, is_cut = self.folders[below].find(video)
        return {
            "video": f"{below}/{video}" if below else video,
            "path": f"{below}/{path}" if below else path,
            "segment": None if is_cut or segment is None else list(segment),
            "category": category,
            "captions": captions,
        }

    def finish(
        self,
        name: str,
        protocol: str,
        tasks: list[dict[str, Any]],
        settings: Mapping[str, Any],
        sources: Iterable[Path],
        published: Mapping[str, int] | None = None,
        held_out: int = 0,
    ) -> tuple[Manifest, str]:
        """Number the tasks, check the manifest as `load_stream` would, write it, and return it with a report.

        Args:
            published: videos per split in the paper's table for `name`; if the counts differ, the stream is not
                compared with a paper, and the report contains a warning.
            held_out: training videos per category that form its validation split.
        """
        sources = [Path(source) for source in sources]
        for number, task in enumerate(tasks, start=1):
            task["name"] = f"task_{number:02d}"
        counts = {split: sum(len(task[split]) for task in tasks) for split in SPLITS}
        is_published = published is not None and all(counts[split] == n for split, n in published.items())
        manifest: Manifest = {
            "format": FORMAT,
            "name": name,
            "protocol": protocol,
            "paper": name if is_published else None,
            "settings": dict(settings),
            "videos": self._videos_entry(),
            "sources": {source.name: digest_file(source) for source in sources},
            **({"held_out": held_out} if held_out else {}),
            "tasks": tasks,
        }
        read = [source.name for source in sources]
        read_from = " + ".join(read) if len(read) <= MAX_NAMED else f"{read[0]} and {len(read) - 1} more files"
        stream = parse_manifest(manifest, source=read_from, base=Path("."), videos=self.videos)
        if self.out is not None:
            write_manifest(manifest, self.out)
        lines = _report(stream)
        unsure = [pair for folder in self.folders.values() for pair in folder.unsure.values()]
        if unsure:
            first, second = unsure[0]
            lines.append(
                f"Names of videos with files in several folders: {len(unsure)}, such as {first} (used) and {second}. "
                "If these are different videos, use their paths as their names."
            )
        if published is not None and not is_published:
            wanted = ", ".join(f"{split} {n}" for split, n in published.items())
            lines.append(f"Not the published stream, which has {wanted}: it is not compared with a paper.")
        return manifest, "\n".join(lines)

    def _videos_entry(self) -> str:
        """Return the folder of videos: relative if below the manifest's folder, so that both can be moved together."""
        videos = self.videos.resolve()
        parent = None if self.out is None else self.out.resolve().parent
        return str(videos.relative_to(parent)) if parent and videos.is_relative_to(parent) else str(videos)


def correct_captions(manifest: Manifest, report: str, videos: Path, out: Path) -> str:
    """Correct the captions of a written manifest (HTML entities, a wrong encoding); return the report and a count."""
    number = 0
    for item in items_of(manifest):
        corrected = [correct_encoding(decode_entities(caption)) for caption in item["captions"]]
        number += sum(new != old for new, old in zip(corrected, item["captions"]))
        item["captions"] = corrected
    count = f"{number} caption{'s were' if number != 1 else ' was'} corrected."
    if not number:
        return f"{report}\n{count}"
    digest = next(line for line in report.splitlines() if line.startswith("digest "))
    checked = check_and_write(manifest, str(out), videos, out)
    notes = [note for note in report.partition(digest)[2].strip().splitlines() if note not in checked]
    return "\n".join([checked, *notes, count])


def check_and_write(manifest: Manifest, source: str, videos: Path, out: Path | None, digest: str | None = None) -> str:
    """Check a complete manifest as `load_stream` would, write it, and return a report.

    Args:
        source: name of the manifest in messages.
        videos: the folder of the manifest's videos.
        out: file of the manifest; if None, nothing is written.
        digest: expected digest of the stream; if None, the digest is not checked.

    Raises:
        ConfigError: in the cases of `load_stream`, and if the digest differs.
    """
    stream = parse_manifest(manifest, source=source, base=Path("."), videos=videos)
    if digest is not None and digest != stream.digest:
        raise ConfigError(
            f"does not have the digest that {STREAM} records", source, remedy="Export it again, or remove the file."
        )
    if out is not None:
        write_manifest(manifest, out)
    return "\n".join(_report(stream))


def _report(stream: Stream) -> list[str]:
    lines = [describe(stream), check_stream(stream), f"digest {stream.digest}"]
    if stream.table_caveat:
        lines.append(f"Marked in tables: {stream.table_caveat}.")
    return lines


def write_manifest(manifest: Manifest, out: Path) -> None:
    """Write a manifest atomically.

    Raises:
        ConfigError: if the file cannot be written, or its name does not end in .json.
    """
    if out.suffix != ".json":
        raise ConfigError(f"{out} does not end in .json", "out", remedy=f"Use for example streams/{out.stem}.json.")
    write_in_runs(out, json.dumps(manifest, ensure_ascii=False, indent=1).encode())
