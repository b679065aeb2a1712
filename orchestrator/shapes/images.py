"""The embedded image stream: ten painted shapes as classes, in five tasks of two, without captions.

A class is what is drawn; its colour, size, place and angle and what lies behind it are drawn anew for each image, so
that none of them tells the class. The images of a class in a split are one array.

Shapes: N images of a class, S = 32 pixels of a side.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.errors import ConfigError
from orchestrator.shapes.world import BACKGROUNDS, COLOURS, SHAPES, Pixels, Sprite, background, draw, shade

VERSION = 1  # raise it whenever pixels change
NAME, SIZE, CLASSES_PER_TASK = "shapes-images", 32, 2
SPLITS = {"train": (0, 64), "test": (1, 32)}  # key in the seed of an image, and images of a class
# The training of divyam3897/UCL@cfaa81d, but for what 128 images of a task and a small network need: batches of 32
# with the rate of 256, and 20 epochs for 200
SETTINGS: dict[str, Any] = {
    "backbone.name": "resnet18-8",
    "backbone.weights": "random",
    "data.num_frames": 1,
    "data.batch_size": 32,
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.weight_decay": 5e-4,
    "optim.schedule": "constant",
    "optim.warmup": 0.0,
    "optim.grad_clip": None,
    "optim.across_tasks": True,
    "optim.epochs": 20,
    "preset": "shapes",
}


def paint(kind: str, key: list[int]) -> Pixels:
    """One image (S, S, 3) of a shape; everything random comes from `key`."""
    rng = np.random.default_rng(key)
    image = background(str(rng.choice(list(BACKGROUNDS))), rng, SIZE)
    radius, colour = rng.uniform(0.22, 0.38), shade(rng, str(rng.choice(list(COLOURS))))
    x, y = rng.uniform(0.35, 0.65, 2)
    draw(image, Sprite(kind, float(x), float(y), float(radius), colour, angle=float(rng.uniform(0, 2 * np.pi))))
    return image


def render_images(root: Path, seed: int = 0, films: bool = True) -> dict[str, Any]:
    """Paint the images below `root` unless they are there, and return the stream's manifest.

    Args:
        root: the folder of data.
        seed: of all images. Classes and their order are the same for every seed.
        films: False makes the manifest alone.

    Raises:
        ConfigError: if `root` cannot be written.
    """
    folder, kinds = Path(root) / f"{NAME}-v{VERSION}-seed{seed}", list(SHAPES)
    tasks: list[dict[str, Any]] = []
    for start in range(0, len(kinds), CLASSES_PER_TASK):
        classes = kinds[start : start + CLASSES_PER_TASK]
        task: dict[str, Any] = {"name": f"task_{len(tasks) + 1:02d}", "categories": classes}
        for split, (key, count) in SPLITS.items():
            task[split] = []
            for kind in classes:
                path = folder / split / f"{kind}.npy"
                if films:
                    _write(path, [[seed, kinds.index(kind), key, number] for number in range(count)], kind)
                task[split].append(
                    {"video": f"{split}_{kind}", "path": f"{folder.name}/{split}/{path.name}", "category": kind}
                )
        tasks.append(task)
    return {"format": 1, "name": NAME, "protocol": "ucl", "tasks": tasks, "settings": dict(SETTINGS)}


def _write(path: Path, keys: list[list[int]], kind: str) -> None:
    """Paint the images of a class, whole or not at all; a file of the right length is taken as it is."""
    header = io.BytesIO()
    shape = (len(keys), SIZE, SIZE, 3)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    if path.is_file() and path.stat().st_size == len(header.getvalue()) + int(np.prod(shape)):
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        images = np.stack([paint(kind, key) for key in keys])
        temporary.write_bytes(header.getvalue() + images.tobytes())
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Give another --runs folder.") from error
    finally:
        temporary.unlink(missing_ok=True)
