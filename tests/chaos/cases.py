"""The runs that are killed: a method, settings that make resuming difficult, and a stream."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.synthetic.images import SETTINGS as IMAGES

PAUSES = {"tracking.pause_minutes": 1e-6}  # after every epoch
VIDEO: dict[str, Any] = {
    "backbone.name": "tiny-clip",
    "backbone.weights": "shipped",
    "data.num_frames": 2,
    "data.batch_size": 2,
    "optim.epochs": 2,
    "optim.lr_scale": 50,
    "evaluation.split": "test",
    **PAUSES,
}
IMAGE = {name: value for name, value in IMAGES.items() if name != "preset"} | {"optim.epochs": 2, "data.batch_size": 8}
IMAGE |= PAUSES
BEST = {"evaluation.select": "best", "optim.epochs": 3}
SMALL_STREAM, QUESTION_STREAM, IMAGE_STREAM = "small.json", "questions.json", "images.json"
TASKS = 3
PICTURES = {"train": 12, "test": 4}  # of a category
PIXELS = 16


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        method: its name in the table of methods.
        settings: all its settings.
        stream: a manifest in the folder of the small stream's.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=lambda: VIDEO)
    stream: str = SMALL_STREAM


def _case(method: str, stream: str = SMALL_STREAM, **more: Any) -> Case:
    base = IMAGE if stream == IMAGE_STREAM else VIDEO
    return Case(method, {**base, **{name.replace("__", "."): value for name, value in more.items()}}, stream)


def _best(method: str, stream: str = SMALL_STREAM, **more: Any) -> Case:
    case = _case(method, stream, **more)
    return Case(case.method, {**case.settings, **BEST}, stream)


CASES: dict[str, Case] = {
    "framefusion_moe": _case("framefusion_moe"),  # experts that are added
    "vr_lwf": _case("vr_lwf", optim__accumulation_steps=2),  # a teacher and a memory, a step of two batches
    "bmu_moco": _case("bmu_moco"),  # queues
    "vop": _case("vop"),
    "vop_fc": _best("vop_fc"),
    "umt_qa": _case("umt_qa", QUESTION_STREAM),
    "umt_qa-best": _best("umt_qa", QUESTION_STREAM, tracking__keep_checkpoints=True),
    "image_lump": _case("image_lump", IMAGE_STREAM, base__width=32, base__bottleneck=16, method__buffer_size=16),
    "image_si": _case("image_si", IMAGE_STREAM),
    "image_progressive": _case("image_progressive", IMAGE_STREAM),
    "lump": _best("lump", method__buffer_size=4),
    "clip4clip": _best("clip4clip", optim__accumulation_steps=2),
    "co2l": _case("co2l", tracking__keep_checkpoints=True, method__buffer_size=4),
    "structalign": _best("structalign"),
    "evit": _best("evit", tracking__keep_checkpoints=True, evaluation__patience=1),
}


def case_of(name: str) -> Case:
    """Return the case of that name; else a case of the method of that name, with the settings common to all."""
    return CASES.get(name) or Case(name)


def write_others(folder: Path) -> None:
    """Write the streams of questions and of images into the folder of the small stream, which exists."""
    manifest = json.loads((folder / SMALL_STREAM).read_text())
    manifest |= {"name": "questions", "protocol": "qa"}
    for task in manifest["tasks"]:
        for split in {"train", "val", "test"} & task.keys():
            for item in task[split]:
                item["captions"] = ["what color is it?", "which split is it?"]
                item["answers"] = [item["category"], f"the {split}"]
    (folder / QUESTION_STREAM).write_text(json.dumps(manifest))
    pixels, tasks = np.random.default_rng(0), []
    (folder / "images").mkdir()
    for number in range(TASKS):
        task: dict[str, Any] = {"name": f"task_{number + 1:02d}", "categories": [f"c{number}a", f"c{number}b"]}
        for split, count in PICTURES.items():
            task[split] = []
            for category in task["categories"]:
                color = pixels.integers(0, 255, (1, 1, 1, 3))
                noisy = color + pixels.normal(0, 40, (count, PIXELS, PIXELS, 3))
                path = f"images/{split}_{category}.npy"
                np.save(folder / path, np.clip(noisy, 0, 255).astype(np.uint8))
                task[split].append({"video": f"{split}_{category}", "path": path, "category": category})
        tasks.append(task)
    images = {"format": 1, "name": "images", "protocol": "ucl", "tasks": tasks, "settings": IMAGE}
    (folder / IMAGE_STREAM).write_text(json.dumps(images))
