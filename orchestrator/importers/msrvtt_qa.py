"""Importer of MSRVTT-QA, a stream of questions (TempMe, Table 7; Xu et al., ACM MM 2017).

Its files are `train_qa.json`, `val_qa.json` and `test_qa.json`, each a list of {"question", "answer", "video_id",
"category_id"}; video 42 is `video42.mp4`. Copies may be JSON lines, omit val_qa.json and the categories, and write
"video42". The stream has one task, as in the papers, or a task for each of several equally large groups of its 20
categories, which no paper uses. Questions are unchanged; repeated pairs of question and answer about one video are
dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Builder, Manifest, empty_task
from ctvr.orchestrator.importers.captions import msrvtt_id
from ctvr.orchestrator.importers.cells import read_objects
from ctvr.orchestrator.importers.folder_files import FolderFiles, describe_unread
from ctvr.orchestrator.streams.stream import SPLITS
from ctvr.orchestrator.streams.videos import video_stem

Row = Mapping[str, Any]

NAME, CATEGORIES = "msrvtt-qa", 20
PUBLISHED = {"train": 6513, "val": 497, "test": 2990}  # numbers of videos in the published split
SETTINGS: dict[str, Any] = {"data.image_size": 224, "backbone.name": "UMT-B-16", "preset": "paper"}


def import_questions(folder: Path, videos: Path, out: Path, tasks: str = "1") -> tuple[Manifest, str]:
    """Import a stream of questions from the files of MSRVTT-QA.

    Args:
        folder: the folder that contains the files.
        videos: the folder that contains the videos.
        out: file of the manifest.
        tasks: the number of groups of categories: a divisor of 20.

    The return value and errors are those of `import_msrvtt`.
    """
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a folder", "folder", remedy="Pass the folder with train_qa.json.")
    if not re.fullmatch("[0-9]{1,2}", tasks) or int(tasks) < 1 or CATEGORIES % int(tasks):
        raise ConfigError(f"{tasks} does not divide the 20 categories", "tasks", remedy="Use 1, 2, 4, 5, 10 or 20.")
    count, builder, files = int(tasks), Builder(videos, out), FolderFiles(Path(folder))
    paths = {split: (files.find if split == "val" else files.need)(*_patterns(split)) for split in SPLITS}
    found = {split: _videos(path, count) for split, path in paths.items() if path is not None}
    made = [empty_task() for _ in range(count)]
    for number in range(CATEGORIES):
        made[number * count // CATEGORIES]["categories"].append(_category(number))
    given = {category for asked in found.values() for category, _ in asked.values()}
    if None in given:
        made[0]["categories"] = [*made[0]["categories"] * (len(given) > 1), _category(None)]
    for split, asked_of in found.items():
        for video, (category, asked) in asked_of.items():
            item = builder.item(video, _category(category), [question for question, _ in asked])
            item["answers"] = [answer for _, answer in asked]
            made[(category or 0) * count // CATEGORIES][split].append(item)
    if empty := next((task for task in made if not task["train"] or not task["test"]), None):
        raise ConfigError(
            f"no training or test question for {', '.join(empty['categories'])}", folder, remedy="Unpack it again."
        )
    published = PUBLISHED if count == 1 else None
    name = NAME if count == 1 else f"{NAME}-{count}"
    manifest, report = builder.finish(name, "qa", made, SETTINGS, files.used, published)
    return manifest, "\n".join([report, *describe_unread(files.unread())])


def _patterns(split: str) -> list[str]:
    """Return the usual names of a split's file, the published name first."""
    return [f"{stem}.{end}" for stem in (f"{split}_qa", f"*qa_{split}", split) for end in ("json", "jsonl")]


def _category(number: int | None) -> str:
    return "any" if number is None else f"category {number}"


def _videos(file: Path, count: int) -> dict[str, tuple[int | None, list[tuple[str, str]]]]:
    """Map each video to its category and its questions with their answers, in the order of the file.

    The category is None in copies that omit it, from which only one task can be made.
    """
    found: dict[str, tuple[int | None, dict[tuple[str, str], None]]] = {}
    for place, row in read_objects(file):
        where = f"{file}: {place}"
        question, answer = _text(where, row, "question"), _text(where, row, "answer", "answers")
        video, category = _video(where, row), _category_of(where, row, count)
        first, asked = found.setdefault(video, (category, {}))
        if first != category:
            raise ConfigError(f"{video} has the categories {first} and {category}", where, remedy="Correct it.")
        asked.setdefault((question, answer))
    return {video: (category, list(asked)) for video, (category, asked) in found.items()}


def _text(where: str, row: Row, *names: str) -> str:
    """Return the text of the first field of `names` that exists; the field may be a list of one text."""
    name = next((each for each in names if each in row), names[0])
    value = row.get(name)
    if isinstance(value, list) and len(set(map(str, value))) > 1:
        raise ConfigError(f"{name} has {len(value)} different texts", where, remedy="Keep one.")
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {str(value)[:40]!r}, not text", where, remedy="Fill it in.")
    return value


def _video(where: str, row: Row) -> str:
    """Return video42 for 42, "42", "video42" and "video42.mp4"."""
    value = row.get("video_id", row.get("video"))
    video = msrvtt_id(video_stem(value) if isinstance(value, str) else value)
    if not isinstance(video, str) or not re.fullmatch(r"video\d+", video, re.ASCII):
        raise ConfigError(f"video_id is {str(value)[:40]!r}", where, remedy="Use its number, or for example video42.")
    return video


def _category_of(where: str, row: Row, count: int) -> int | None:
    value = row.get("category_id", row.get("category"))
    if value is None and count == 1:
        return None
    if type(value) is not int or not 0 <= value < CATEGORIES:
        if value is None:
            raise ConfigError("category_id is missing", where, remedy="Use the published files, or omit tasks=N.")
        raise ConfigError(f"category_id is {str(value)[:40]!r}, not one of 0 to 19", where, remedy="Correct it.")
    return value
