"""Small files in the formats in which the benchmarks' authors publish theirs."""

import csv
import json
from pathlib import Path
from typing import Any

from ctvr.orchestrator.streams.stream import Stream

SPLIT = {
    "train": {1: {3: ["video0", "video1"]}, 2: {0: ["video2"]}},
    "val": {1: {3: ["video7010"]}, 2: {0: ["video7011", "video7012"]}},
}
SENTENCES = [
    ("video0", " a man sings "),
    ("video1", "a dog"),
    ("video0", "someone sings"),
    ("video2", "a car"),
    ("video2", " "),
]


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_rows(path: Path, *rows: tuple[Any, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def as_sentences(rows: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "videos": [{"video_id": video, "category": 3, "split": "train"} for video in dict(rows)],
        "sentences": [{"caption": text, "video_id": video, "sen_id": n} for n, (video, text) in enumerate(rows)],
    }


def as_coco(rows: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "images": [{"id": video} for video in dict(rows)],
        "annotations": [{"image_id": video, "caption": text, "id": n} for n, (video, text) in enumerate(rows)],
    }


def captions(stream: Stream, split: str) -> dict[str, tuple[str, ...]]:
    return {item.video: item.captions for task in range(len(stream.tasks)) for item in stream.items(task, split)}
