"""A stream of a few real videos of 64 x 64 pixels, made within a second."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.in_subprocess import in_subprocess

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220), "yellow": (240, 220, 60)}
WORDS = ("circle", "square", "star", "ring", "heart", "cross")


def write_clip(path: Path, colour: tuple[int, int, int], seed: int) -> None:
    """Write eight 64 x 64 frames in which a block of the color moves over noise."""
    import av  # here: see `write_stream`

    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=8)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "20"}
        x, y = rng.integers(0, 40, 2)
        for frame in range(8):
            image = rng.integers(90, 160, (64, 64, 3)).astype(np.uint8)
            image[y : y + 20, (x + 2 * frame) % 44 : (x + 2 * frame) % 44 + 20] = colour
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())


def write_stream(folder: Path, num_tasks: int = 3, train: int = 4, searched: int = 3, has_val: bool = True) -> Path:
    """Write a manifest `small.json` with its videos: one color per task, a test split and, if `has_val`, a validation
    split.

    They are written in a child, since FFmpeg must not be loaded in a process that may run Ray.
    """
    shutil.copytree(_made(num_tasks, train, searched * has_val, searched), folder, dirs_exist_ok=True)
    return folder / "small.json"


@cache
def _made(num_tasks: int, train: int, val: int, test: int) -> Path:
    """Make each kind of stream once for this process."""
    folder = Path(tempfile.mkdtemp(prefix="ctvr-small-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    in_subprocess(_write_stream, folder, num_tasks, {"train": train, "val": val, "test": test})
    return folder


def _write_stream(folder: Path, num_tasks: int, videos: dict[str, int]) -> None:
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    tasks = []
    for index, (name, colour) in enumerate(list(COLOURS.items())[:num_tasks]):
        task: dict[str, object] = {"name": f"task_{index + 1:02d}", "categories": [name]}
        for split, count in videos.items():
            items = []
            for number in range(count):
                video = f"{name}_{split}_{number}"
                write_clip(folder / "videos" / f"{video}.mp4", colour, seed=100 * index + 10 * len(split) + number)
                captions = [f"a {name} {WORDS[number]} on the {split}"]
                if split == "train":
                    captions.append(f"the {WORDS[number]} is {name}")
                items.append({"video": video, "path": f"{video}.mp4", "category": name, "captions": captions})
            task[split] = items
        tasks.append(task)
    manifest = {
        "format": 1,
        "name": "small",
        "protocol": "ctvr",
        "videos": "videos",
        "tasks": tasks,
        "settings": {
            "backbone.name": "tiny-clip",
            "backbone.weights": "shipped",
            "data.num_frames": 4,
            "data.batch_size": 4,
            "optim.epochs": 2,
            "optim.lr_scale": 50,
        },
    }
    (folder / "small.json").write_text(json.dumps(manifest))
