"""Gallery of a saved model: features of its stream's videos, so that it can be searched without the videos.

`gallery.safetensors` has a tensor (V, ...) for each task, as stored after the task was learned; `gallery.json` has the
names of tasks and videos, segments and captions, but no paths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.stream import Item, Stream

FEATURES, VIDEOS = "gallery.safetensors", "gallery.json"


def save_gallery(galleries: Sequence[Tensor], stream: Stream, split: str, folder: Path) -> None:
    """Write the features (V, ...) of each task's videos of a split, and the names that a search result contains."""
    features = {str(index): features.detach().cpu().contiguous().clone() for index, features in enumerate(galleries)}
    save_file(features, str(folder / FEATURES))
    tasks = [
        {
            "name": task.name,
            "task": stream.method_task(index),
            "videos": [
                {"video": item.video, "segment": item.segment, "captions": item.captions}
                for item in stream.items(index, split)
            ],
        }
        for index, task in enumerate(stream.tasks)
    ]
    (folder / VIDEOS).write_text(json.dumps(tasks, ensure_ascii=False), encoding="utf-8")


def read_gallery(folder: Path) -> list[tuple[str, tuple[Item, ...], Tensor, int]]:
    """Return name, videos (without paths), features and the method's task of each task; empty without a gallery.

    Raises:
        ConfigError: if the files are damaged or do not belong together.
    """
    if not ((folder / FEATURES).is_file() and (folder / VIDEOS).is_file()):
        return []
    try:
        features = load_file(str(folder / FEATURES))
        found = []
        for index, task in enumerate(read_json(folder / VIDEOS)):
            items = tuple(
                Item(str(each["video"]), "", _segment(each["segment"]), "", tuple(map(str, each["captions"])))
                for each in task["videos"]
            )
            found.append((str(task["name"]), items, features[str(index)], int(task.get("task", index))))
        if len(found) != len(features) or any(len(items) != len(rows) for _, items, rows, _ in found):
            raise ValueError("numbers of videos and features differ")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"does not fit {FEATURES} ({error})", folder / VIDEOS, remedy="Save the model again."
        ) from error
    return found


def _segment(given: Sequence[float] | None) -> tuple[float, float] | None:
    if given is None:
        return None
    start, end = given
    return float(start), float(end)
