"""The embedded image stream: ten painted patterns as classes, in five tasks of two, without captions.

A class is a pattern of two tints: rows, columns, spots and so on. Crops, flips, jitter and conversion to gray
preserve it. Tints, their order, the number and position of repetitions, a small tilt and grain are random in each
image, so that color and neighboring pixels do not suffice to identify the class. The images of a class in a split are
one array.

Shapes: N images of a class, S = 32 pixels per side.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from ctvr.orchestrator.output_dir import write_in_runs
from ctvr.orchestrator.synthetic.drawing import Array, Pixels, noise, to_pixels

VERSION = 2  # increase it when pixels change
NAME, SIZE, CLASSES_PER_TASK = "shapes-images", 32, 2
SPLITS = {"train": (0, 128), "test": (1, 32)}  # split -> its key in seeds, images per class
PATTERNS = ("rows", "columns", "spots", "checks", "rings", "rays", "grid", "slants", "waves", "blots")
TILT, GRAIN = 0.15, 8.0  # radians; standard deviation of the grain in gray levels (0 to 255)
# The training of divyam3897/UCL@cfaa81d, adapted to 256 images per task and a small network: batches of 32 with twice
# the rate of 256, and 20 epochs instead of 200
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
    "optim.lr_scale": 2.0,
    "optim.carry_momentum": True,
    "optim.epochs": 20,
    "preset": "shapes",
}


def paint(kind: str, key: list[int]) -> Pixels:
    """Paint one image (S, S, 3) of a pattern; all randomness comes from `key`."""
    rng = np.random.default_rng(key)
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    tilt = rng.uniform(-TILT, TILT)
    u, v = x * np.cos(tilt) + y * np.sin(tilt), y * np.cos(tilt) - x * np.sin(tilt)
    above = _pattern(kind, u, v, rng)
    if rng.random() < 0.5:
        above = ~above
    tints = rng.uniform(-70, 70, (2, 3)) + rng.uniform(-40, 40)  # (2, 3): offsets per channel, and a brightness
    image = np.where(above[..., None], 176 + tints[1], 80 + tints[0])
    return to_pixels(image + rng.normal(0, GRAIN, (SIZE, SIZE, 1)))


def _pattern(kind: str, u: Array, v: Array, rng: Generator) -> Any:
    """Return the mask of the second tint, (S, S) bool; u to the right and v down, both about 0 to 1."""
    (p, q), repeats = rng.random(2), rng.uniform(4.0, 7.0)
    across, down = u * repeats + p, v * repeats + q
    right, below = across % 1 - 0.5, down % 1 - 0.5  # from the middle of a cell
    if kind == "rows":
        return np.abs(below) > 0.25
    if kind == "columns":
        return np.abs(right) > 0.25
    if kind == "spots":
        return np.hypot(right, below) < 0.38
    if kind == "checks":
        return (np.floor(across) + np.floor(down)) % 2 > 0
    if kind == "grid":
        return (across % 1 < 0.25) | (down % 1 < 0.25)
    if kind == "slants":  # they fall or rise, because mirrored images belong to the same class
        return np.abs(((u + (v if q < 0.5 else -v)) * repeats * 0.75 + p) % 1 - 0.5) > 0.25
    if kind == "waves":
        return np.abs((down + 0.35 * np.sin(2 * np.pi * (u * 3 + p))) % 1 - 0.5) > 0.25
    if kind == "blots":
        return noise(rng, SIZE, 8) > 0.55
    x, y = u - 0.35 - 0.3 * p, v - 0.35 - 0.3 * q  # relative to a random center
    if kind == "rings":
        return np.abs((np.hypot(x, y) * repeats * 1.3 + rng.random()) % 1 - 0.5) > 0.25
    return np.sin(np.arctan2(y, x) * rng.integers(5, 9) + 2 * np.pi * rng.random()) > 0  # rays


def render_images(root: Path, videos: bool = True) -> dict[str, Any]:
    """Paint the images below `root` unless they exist, and return the stream's manifest.

    Args:
        root: the data folder.
        videos: whether to paint the images.

    Raises:
        ConfigError: if `root` cannot be written.
    """
    folder, kinds = Path(root) / f"{NAME}-v{VERSION}-seed0", list(PATTERNS)
    tasks: list[dict[str, Any]] = []
    for start in range(0, len(kinds), CLASSES_PER_TASK):
        classes = kinds[start : start + CLASSES_PER_TASK]
        task: dict[str, Any] = {"name": f"task_{len(tasks) + 1:02d}", "categories": classes}
        for split, (key, count) in SPLITS.items():
            task[split] = []
            for kind in classes:
                path = folder / split / f"{kind}.npy"
                if videos:
                    _write(path, [[0, kinds.index(kind), key, number] for number in range(count)], kind)
                task[split].append(
                    {"video": f"{split}_{kind}", "path": f"{folder.name}/{split}/{path.name}", "category": kind}
                )
        tasks.append(task)
    return {"format": 1, "name": NAME, "protocol": "ucl", "tasks": tasks, "settings": dict(SETTINGS)}


def _write(path: Path, keys: list[list[int]], kind: str) -> None:
    """Paint the images of a class, atomically; an existing file of the right length is kept."""
    header = io.BytesIO()
    shape = (len(keys), SIZE, SIZE, 3)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    if path.is_file() and path.stat().st_size == len(header.getvalue()) + int(np.prod(shape)):
        return
    images = np.stack([paint(kind, key) for key in keys])
    write_in_runs(path, header.getvalue() + images.tobytes())
