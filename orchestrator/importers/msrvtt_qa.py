"""Importer of MSRVTT-QA, a stream of questions (TempMe, Table 7; Xu et al., ACM MM 2017).

Its files are `train_qa.json`, `val_qa.json` and `test_qa.json`, each a list of {"question", "answer", "video_id",
"category_id"}; video 42 is `video42.mp4`. The stream is one task, as in the papers, or (in no paper) a task per equal
group of its 20 categories. Questions are unchanged; repeated pairs of question and answer about one video are dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Builder, Manifest, empty_task
from ctvr.orchestrator.streams.manifest import read_json
from ctvr.orchestrator.streams.stream import SPLITS

NAME, CATEGORIES = "msrvtt-qa", 20
PUBLISHED = {"train": 6513, "val": 497, "test": 2990}  # numbers of videos in the published split
SETTINGS: dict[str, Any] = {"data.image_size": 224, "backbone.name": "UMT-B-16", "preset": "paper"}


def import_questions(folder: Path, videos: Path, out: Path, tasks: str = "1") -> tuple[Manifest, str]:
    """Import a stream of questions from the files of MSRVTT-QA.

    Args:
        folder: the folder of the three files.
        videos: the folder that contains the videos.
        out: the manifest.
        tasks: the number of groups of categories: a divisor of 20.

    Returns and raises as `import_msrvtt`.
    """
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a folder", "folder", remedy="Give the one with train_qa.json.")
    if not tasks.isdecimal() or int(tasks) < 1 or CATEGORIES % int(tasks):
        raise ConfigError(f"{tasks} does not divide the 20 categories", "tasks", remedy="Write 1, 2, 4, 5, 10 or 20.")
    count, builder = int(tasks), Builder(videos, out)
    made = [empty_task() for _ in range(count)]
    for number in range(CATEGORIES):
        made[number * count // CATEGORIES]["categories"].append(_category(number))
    files = {split: Path(folder) / f"{split}_qa.json" for split in SPLITS}
    for split, file in files.items():
        for video, (category, asked) in _videos(file).items():
            item = builder.item(video, _category(category), [question for question, _ in asked])
            item["answers"] = [answer for _, answer in asked]
            made[category * count // CATEGORIES][split].append(item)
    if empty := next((task for task in made if not task["train"] or not task["test"]), None):
        raise ConfigError(
            f"no training or test question for {', '.join(empty['categories'])}", folder, remedy="Unpack it again."
        )
    published = PUBLISHED if count == 1 else None
    return builder.finish(NAME if count == 1 else f"{NAME}-{count}", "qa", made, SETTINGS, files.values(), published)


def _category(number: int) -> str:
    return f"category {number}"


def _videos(file: Path) -> dict[str, tuple[int, list[tuple[str, str]]]]:
    """Map each video to its category and its questions with their answers, in the order of the file."""
    rows = read_json(file)
    if not isinstance(rows, list):
        raise ConfigError("is not a list of questions", file, remedy="Give the published file unchanged.")
    found: dict[str, tuple[int, dict[tuple[str, str], None]]] = {}
    for place, row in enumerate(rows):
        question, answer, video, category = (_field(file, place, row, name) for name in _FIELDS)
        if not 0 <= category < CATEGORIES:
            raise ConfigError(f"{file}: entry {place}: category_id {category} is not one of 0 to 19. Correct it.")
        first, asked = found.setdefault(f"video{video}", (category, {}))
        if first != category:
            raise ConfigError(
                f"entry {place}: video {video} has the categories {first} and {category}", file, remedy="Correct it."
            )
        asked.setdefault((question, answer))
    return {video: (category, list(asked)) for video, (category, asked) in found.items()}


_FIELDS = {"question": str, "answer": str, "video_id": int, "category_id": int}


def _field(file: Path, place: int, row: Any, name: str) -> Any:
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not _FIELDS[name] or value == "":
        kind = "text" if _FIELDS[name] is str else "a whole number"
        raise ConfigError(
            f"{file}: entry {place}: {name} is {str(value)[:40]!r}, not {kind}. Give the published file unchanged."
        )
    return value
