"""Importer of a folder in Hugging Face's VideoFolder layout -> a manifest: from `ctvr streams export --hf`, or others.

It has a folder for each split (train, validation or val, test) with the videos and `metadata.jsonl` or `metadata.csv`:
`file_name`, captions (`captions`, a list, or one in `caption` or `text`), `task`, and optionally `video_id`,
`category`, `start`, `end`, `twin`. Several lines of one file are captions of one video. An optional `stream.json` gives
the protocol and the order of the tasks. Without metadata the folder may contain parquet shards (importers/shards.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Manifest, check_and_write, empty_task
from ctvr.orchestrator.importers.cells import in_order, open_table, read_json_lines
from ctvr.orchestrator.importers.shards import Shards, find_shards
from ctvr.orchestrator.streams.captions import captions_of
from ctvr.orchestrator.streams.manifest import FORMAT, read_json
from ctvr.orchestrator.streams.stream import SPLITS
from ctvr.orchestrator.streams.videos import FOLDERS, METADATA, STREAM, video_stem

CAPTIONS = ("captions", "caption", "text")
Row = dict[str, Any]


def import_dataset(folder: Path, out: Path | None, name: str | None = None) -> tuple[Manifest, str]:
    """Import the folder; returns and raises as `import_msrvtt`.

    Tasks are in the order of `stream.json`, else of their numbers, else of their first appearance. A folder without
    column `task` is one task; one without `category` has one category per task. Videos inside parquet files are
    written once, each into a file named by its digest in a folder of the manifest's name.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"folder: {folder} is not a folder. Give the one that contains train/ and test/.")
    about = _about(folder)
    try:
        collected = _Collected({each["name"]: list(each["categories"]) for each in about.get("tasks", [])})
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / STREAM}: tasks: {error} is missing or of another kind. Export it again."
        ) from error
    more: Row = {}
    videos = folder.resolve()
    shards = find_shards(folder)
    if any(list(_metadata(folder, split)) for split in SPLITS) or not shards:
        for split in SPLITS:
            for file, line, row in _rows(folder, split):
                collected.add(split, file, line, row, _path(file, line, row, folder))
    else:
        read = Shards(folder, shards, None if out is None else out.with_suffix(""))
        for split, file, line, row, path in read.rows():
            collected.add(split, file, line, row, path)
        videos, more = read.videos(), read.sources()
    if not collected.items:
        raise ConfigError(f"folder: {folder} has no train/{METADATA}. Give a folder in the layout of VideoFolder.")
    manifest: Manifest = {
        "format": FORMAT,
        "name": name or str(about.get("name") or folder.resolve().name),
        "protocol": about.get("protocol", "ctvr"),
        "paper": about.get("paper"),
        "settings": about.get("settings", {}),
        "videos": str(videos),
        **more,
        "tasks": collected.tasks_in_order(),
    }
    text = check_and_write(manifest, str(folder), videos, out)
    digest = about.get("digest")
    if digest and digest not in text:
        raise ConfigError(
            f"{folder}: is not the stream whose digest {STREAM} names. Export it again, or remove the file."
        )
    return manifest, text


def _about(folder: Path) -> Row:
    about = read_json(folder / STREAM) if (folder / STREAM).is_file() else {}
    if not isinstance(about, dict):
        raise ConfigError(f"{folder / STREAM}: is not an object. Remove the file, or export the stream again.")
    return about


def _metadata(folder: Path, split: str) -> Iterator[Path]:
    for name in dict.fromkeys((FOLDERS[split], split)):
        yield from (file for end in (METADATA, "metadata.csv") if (file := folder / name / end).is_file())


def _rows(folder: Path, split: str) -> Iterator[tuple[Path, int, Row]]:
    """Yield (file, line from 1, row) of a split's metadata; nothing if the split does not exist."""
    file = next(_metadata(folder, split), None)
    if file is None:
        if bare := [place for name in (FOLDERS[split], split) if (place := folder / name).is_dir()]:
            raise ConfigError(f"{bare[0]}: has no {METADATA} with the captions of its videos. Write one.")
        return
    rows = read_json_lines(file) if file.suffix == ".jsonl" else open_table(file, ("file_name", "task")).rows
    for line, row in rows:
        yield file, line, row


def _path(file: Path, line: int, row: Row, folder: Path) -> str:
    """Return the path of a row's video below the folder."""
    name = _cell(row, "file_name")
    if not isinstance(name, str):
        raise ConfigError(f"{file}: line {line}: file_name is missing. Write the video's name, relative to this file.")
    if PurePosixPath(name).is_absolute():
        raise ConfigError(f"{file}: line {line}: file_name {name!r} is absolute. Write it relative to this folder.")
    return (file.parent / name).relative_to(folder).as_posix()


def _cell(row: Row, name: str) -> Any:
    value = row.get(name)
    return None if value == "" else value


def _text(row: Row, name: str, otherwise: str) -> str:
    """Return a cell as text; a number can be 0."""
    value = _cell(row, name)
    return otherwise if value is None or value is False else str(value)


def _captions(where: str, row: Row) -> list[Any]:
    found = next((row[key] for key in CAPTIONS if _cell(row, key) is not None), None)
    if found is None:
        raise ConfigError(f"{where}: no caption. Write a column called captions, caption or text.")
    if isinstance(found, list):
        return list(found)
    if isinstance(found, dict):
        raise ConfigError(f"{where}: captions are an object. Write one text, or a list of texts.")
    text = str(found)
    try:
        listed = captions_of(text)
    except ValueError as error:
        raise ConfigError(f"{where}: caption {error}") from None
    return [text] if listed == [text.strip()] else listed  # a plain caption is kept unchanged


@dataclass
class _Collected:
    """Items of the rows so far. Rows of one file and segment are captions of one video.

    An id is `video_id`, or the name of the file; its path below the split if another folder has the same name.
    """

    about: dict[str, list[str]]  # name of a task -> its categories, from stream.json
    items: dict[tuple[str, Any, str], Row] = field(default_factory=dict)  # file, segment, written id -> item
    tasks: dict[str, Row] = field(default_factory=dict)
    places: dict[tuple[str, Any, str], tuple[str, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, categories in self.about.items():
            self.tasks[name] = empty_task() | {"name": name, "categories": categories}

    def add(self, split: str, file: Path, line: int, row: Row, path: str) -> None:
        where = f"{file}: line {line}"
        label = _text(row, "task", "task_01")
        if self.about and label not in self.tasks:
            raise ConfigError(f"{where}: task is {label!r}, which {STREAM} does not name. Correct one.")
        category, segment = _text(row, "category", label), _segment(where, row)
        key = path, None if segment is None else tuple(segment), _text(row, "video_id", "")
        captions = _captions(where, row)
        place = label, split, category
        if key in self.items:
            if self.places[key] != place:
                first = " ".join(self.places[key])
                raise ConfigError(f"{where}: {path} is also in {first!r}. Keep it in one place.")
            self.items[key]["captions"] += captions
            self.items[key].get("answers", []).extend(row.get("answers") or [])
            return
        item = {"video": key[2], "path": path, "segment": segment, "category": category, "captions": captions}
        item |= {"answers": row["answers"]} if row.get("answers") else {"twin": _cell(row, "twin")}
        task = self.tasks.setdefault(label, empty_task() | {"name": label})
        if category not in task["categories"]:
            task["categories"].append(category)
        task[split].append(item)
        self.items[key], self.places[key] = item, place

    def tasks_in_order(self) -> list[Row]:
        """Return the tasks; items without `video_id` get their ids."""
        files: dict[str, set[str]] = defaultdict(set)  # id -> files without `video_id` that would get it
        segments: dict[str, int] = defaultdict(int)
        for path, _, written in self.items:
            if not written:
                files[PurePosixPath(path).stem].add(path)
                segments[path] += 1
        for (path, segment, written), item in self.items.items():
            if not written:
                stem = PurePosixPath(path).stem
                item["video"] = stem if len(files[stem]) == 1 else _by_path(files[stem], path)
                if segments[path] > 1 and segment is not None:
                    item["video"] += f"@{segment[0]:g}-{segment[1]:g}"
        names = list(self.tasks) if self.about else in_order(self.tasks)
        return [self.tasks[name] for name in names]


def _by_path(paths: set[str], path: str) -> str:
    """Return the id of one of several files with the same name: its path below the folder of its split."""
    tops = {each.partition("/")[0] for each in paths}
    if len(tops) > 1:
        first, second = sorted(paths)[:2]
        raise ConfigError(
            f"{first} and {second} have one name in two splits. If they are two videos, give each an id in the column "
            "video_id; if they are one, keep one of them."
        )
    return video_stem(path.partition("/")[2])


def _segment(where: str, row: Row) -> list[float] | None:
    start, end = _cell(row, "start"), _cell(row, "end")
    try:
        return None if start is None and end is None else [float(start), float(end)]
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{where}: start {start!r:.40} and end {end!r:.40} are not two numbers. Write seconds."
        ) from None
