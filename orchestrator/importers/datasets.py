"""A folder in the form of Hugging Face's VideoFolder -> a manifest: of `ctvr streams export --hf`, or another's.

A folder for each split (train, validation or val, test), in it the videos and `metadata.jsonl` or `metadata.csv` with a
line for each: `file_name`, captions (`captions`, a list, or one in `caption` or `text`), `task`, and perhaps
`video_id`, `category`, `start`, `end`, `twin`. `stream.json`, where there is one, says the protocol and the order of
the tasks.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.importers.builder import Manifest, checked, empty_task
from orchestrator.streams.manifest import FORMAT, read_json
from orchestrator.streams.stream import SPLITS
from orchestrator.streams.videos import FOLDERS, METADATA, STREAM

CAPTIONS = ("captions", "caption", "text")


def import_dataset(folder: Path, out: Path | None, name: str | None = None) -> tuple[Manifest, str]:
    """Read the folder; returns and raises as `import_msrvtt`.

    Tasks stand in the order of `stream.json`, else of their numbers, else of their first appearance. A folder without
    column `task` is one task; one without `category` has one category for each task.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"folder: {folder} is not a folder. Give the one that holds train/ and test/.")
    about = read_json(folder / STREAM) if (folder / STREAM).is_file() else {}
    if not isinstance(about, dict):
        raise ConfigError(f"{folder / STREAM}: holds no object. Take it away, or export the stream again.")
    tasks: dict[str, dict[str, Any]] = {}
    try:
        for each in about.get("tasks", []):
            tasks[each["name"]] = empty_task() | {"name": each["name"], "categories": list(each["categories"])}
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / STREAM}: tasks: {error} is missing or of another kind. Export it again."
        ) from error
    read = []
    for split in SPLITS:
        for file, line, row in _rows(folder, split):
            read.append(file)
            label = str(_cell(row, "task") or "task_01")
            if about and label not in tasks:
                raise ConfigError(f"{file}: line {line}: task is {label!r}, which {STREAM} does not name. Correct one.")
            task = tasks.setdefault(label, empty_task() | {"name": label})
            item = _item(file, line, row, folder, label)
            if item["category"] not in task["categories"]:
                task["categories"].append(item["category"])
            task[split].append(item)
    if not read:
        raise ConfigError(f"folder: {folder} has no train/{METADATA}. Give a folder in the form of VideoFolder.")
    names = list(tasks)
    if not about and all(each.isdecimal() for each in names):
        names.sort(key=int)
    manifest: Manifest = {
        "format": FORMAT,
        "name": name or str(about.get("name") or folder.resolve().name),
        "protocol": about.get("protocol", "ctvr"),
        "paper": about.get("paper"),
        "settings": about.get("settings", {}),
        "videos": str(folder.resolve()),
        "tasks": [tasks[each] for each in names],
    }
    text = checked(manifest, str(folder), folder, out)
    digest = about.get("digest")
    if digest and digest not in text:
        raise ConfigError(
            f"{folder}: is not the stream whose digest {STREAM} names. Export it again, or remove the file."
        )
    return manifest, text


def _rows(folder: Path, split: str) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """(file, line from 1, what it says) of a split's metadata; nothing where the split is not there."""
    for name in dict.fromkeys((FOLDERS[split], split)):
        jsonl, table = folder / name / METADATA, folder / name / "metadata.csv"
        if jsonl.is_file():
            for number, text in enumerate(_text(jsonl).splitlines(), start=1):
                try:
                    row = json.loads(text)
                except ValueError as error:
                    raise ConfigError(f"{jsonl}: line {number}: not JSON ({error}). Correct this line.") from error
                if not isinstance(row, dict):
                    raise ConfigError(f'{jsonl}: line {number}: holds no object. Write {{"file_name": ...}}.')
                yield jsonl, number, row
            return
        if table.is_file():
            for number, row in enumerate(csv.DictReader(_text(table).splitlines()), start=2):
                yield table, number, row
            return
        if (folder / name).is_dir():
            raise ConfigError(f"{folder / name}: has no {METADATA}, which says the captions of its videos. Write one.")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start} is not UTF-8 text. Save the file as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from error


def _cell(row: dict[str, Any], name: str) -> Any:
    value = row.get(name)
    return None if value == "" else value


def _item(file: Path, line: int, row: dict[str, Any], folder: Path, task: str) -> dict[str, Any]:
    name = _cell(row, "file_name")
    if not isinstance(name, str):
        raise ConfigError(f"{file}: line {line}: file_name is missing. Write the video's name beside this file.")
    captions = next((row[key] for key in CAPTIONS if _cell(row, key) is not None), None)
    if captions is None:
        raise ConfigError(f"{file}: line {line}: no caption. Write a column called captions, caption or text.")
    start, end = _cell(row, "start"), _cell(row, "end")
    try:
        segment = None if start is None and end is None else [float(start), float(end)]
    except (TypeError, ValueError):
        raise ConfigError(f"{file}: line {line}: start {start!r} and end {end!r} are no two numbers.") from None
    return {
        "video": str(_cell(row, "video_id") or Path(name).stem),
        "path": (file.parent / name).relative_to(folder).as_posix(),
        "segment": segment,
        "category": str(_cell(row, "category") or task),
        "captions": captions if isinstance(captions, list) else [str(captions)],
        "twin": _cell(row, "twin"),
    }
