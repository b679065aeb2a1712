"""A stream small enough to train on in seconds, for the tests that need whole runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.orchestrator.clips import write_film

WORDS = ("a red ball rolls left", "a dog jumps", "two men talk", "rain on a window", "a car turns", "a hand waves")


def write_stream(folder: Path, tasks: int = 3, train: int = 4, held_out: int = 3) -> Path:
    """The manifest of a stream of very short films for the shipped backbone, one category per task."""
    videos = folder / "videos"
    videos.mkdir(parents=True, exist_ok=True)
    number = 0

    def items(task: int, count: int) -> list[dict[str, object]]:
        nonlocal number
        made = []
        for _ in range(count):
            number += 1
            write_film(videos / f"film{number}.mp4", frames=8 + number)
            caption = f"{WORDS[number % len(WORDS)]} number {number}"
            made.append(
                {
                    "video": f"film{number}",
                    "path": f"film{number}.mp4",
                    "segment": None,
                    "category": f"kind {task}",
                    "captions": [caption],
                }
            )
        return made

    manifest = {
        "format": 1,
        "name": "few",
        "protocol": "ctvr",
        "paper": None,
        "settings": {
            "backbone.name": "tiny-clip",
            "backbone.weights": "shipped",
            "data.num_frames": 2,
            "data.batch_size": 4,
            "optim.epochs": 2,
            "optim.lr_scale": 50,
            "preset": "shapes",
        },
        "videos": "videos",
        "tasks": [
            {
                "name": f"task_{task + 1:02d}",
                "categories": [f"kind {task}"],
                "train": items(task, train),
                "val": items(task, held_out),
                "test": items(task, held_out),
            }
            for task in range(tasks)
        ],
    }
    file = folder / "few.json"
    file.write_text(json.dumps(manifest))
    return file
