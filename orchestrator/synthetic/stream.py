"""The embedded stream: captioned synthetic videos, rendered locally, without any download.

Twenty categories, each with its own place, motion, camera and vocabulary (scenes.py), in 5, 10 or 20 tasks. Per
category: 16 training, 8 validation and 24 test clips. Some scenes are shown in both directions; the captions of such
twins differ only in the direction. In six categories the twins have the same frames in opposite order, so a method that
averages frames cannot distinguish them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.synthetic.scenes import CATEGORIES, Scene, draw_scene
from ctvr.orchestrator.synthetic.video_files import Clip, render_files

VERSION = 1  # increase it when pixels or captions change
TASK_COUNTS = (5, 10, 20)
SPLITS = ("train", "val", "test")
SETTINGS: dict[str, Any] = {
    "backbone.name": "tiny-clip",
    "backbone.weights": "shipped",
    "data.num_frames": 8,
    "data.batch_size": 8,
    "optim.epochs": 8,
    "optim.lr_scale": 50,  # the published learning rates are for a tower a hundred times larger
    "preset": "shapes",  # used if the method has it
}


@dataclass(frozen=True)
class Share:
    """Numbers of scenes per category in a split: shown in both directions (`twins`) or in one direction (`singles`)."""

    key: int  # part of the seed of its scenes
    twins: int
    singles: int


# In drawing order: a later split avoids the captions of an earlier one.
SHARES = {"test": Share(1, 4, 16), "val": Share(2, 2, 4), "train": Share(0, 4, 8)}


def render_stream(root: Path, num_tasks: int = 10, seed: int = 0, videos: bool = True) -> dict[str, Any]:
    """Render the videos below `root` unless they exist, and return the stream's manifest.

    Streams with 5, 10 and 20 tasks share one set of videos, `root/shapes-v1-seed<seed>/{train,val,test}/*.mp4`; a
    missing or damaged video is rendered again. The format of the manifest is in streams/manifest.py; `path` is relative
    to `root`.

    Args:
        root: the data folder.
        num_tasks: 5, 10 or 20.
        seed: seed of scenes and captions. The categories and their order are the same for every seed.
        videos: whether to render the videos.

    Raises:
        ConfigError: for another number of tasks, or if `root` cannot be written.
    """
    if num_tasks not in TASK_COUNTS:
        raise ConfigError(
            f"shapes-{num_tasks} does not exist", "stream", remedy="Use shapes-5, shapes-10 or shapes-20."
        )
    folder = Path(root) / f"shapes-v{VERSION}-seed{seed}"
    clips = plan(seed)
    if videos:
        render_files(folder, [clip for clip, _ in clips])
    groups = np.split(np.random.default_rng(0).permutation(len(CATEGORIES)), num_tasks)
    tasks = []
    for number, group in enumerate(groups, start=1):
        categories = [CATEGORIES[index].name for index in group]
        task: dict[str, Any] = {"name": f"task_{number:02d}", "categories": categories}
        for split in SPLITS:
            task[split] = [
                {**item, "path": f"{folder.name}/{clip.path}", "captions": list(item["captions"])}
                for category in categories
                for clip, item in clips
                if item["category"] == category and clip.path.startswith(f"{split}/")
            ]
        tasks.append(task)
    return {"format": 1, "name": f"shapes-{num_tasks}", "protocol": "ctvr", "tasks": tasks, "settings": dict(SETTINGS)}


@lru_cache(maxsize=2)
def plan(seed: int) -> tuple[tuple[Clip, dict[str, Any]], ...]:
    """Return every clip with its item, which has no `path` yet."""
    clips: list[tuple[Clip, dict[str, Any]]] = []
    for index in range(len(CATEGORIES)):
        captions: set[str] = set()
        for split, share in SHARES.items():
            clips += _plan_split(seed, index, split, share, captions)
    return tuple(clips)


def _plan_split(
    seed: int, category: int, split: str, share: Share, captions: set[str]
) -> Iterator[tuple[Clip, dict[str, Any]]]:
    """Yield the clips of one category in one split; `captions` are not reused, and new captions are added to them."""
    seen: set[tuple[str, ...]] = set()
    name = CATEGORIES[category].name
    for number in range(share.twins + share.singles):
        directions = (False, True) if number < share.twins else (number % 2 == 1,)
        scene = _new_scene([seed, category, share.key, number], category, directions, captions, seen)
        stems = [f"{name}_{number:02d}{'b' if backward else 'f'}" for backward in directions]
        for backward, stem, twin in zip(directions, stems, stems[::-1]):
            item = {
                "video": f"{split}_{stem}",
                "category": name,
                "captions": (scene.captions[backward],),
                "twin": f"{split}_{twin}" if len(stems) == 2 else None,
            }
            yield Clip(f"{split}/{stem}.mp4", scene, backward), item


def _new_scene(
    key: list[int], category: int, directions: tuple[bool, ...], captions: set[str], seen: set[tuple[str, ...]]
) -> Scene:
    """Generate scenes from the seed `key` until captions and pair of objects are new; record both."""
    for attempt in range(1000):
        scene = draw_scene(category, np.random.default_rng([*key, attempt]))
        things = (scene.main.colour, scene.main.shape, scene.other.colour, scene.other.shape)
        texts = [scene.captions[backward] for backward in directions]
        if things not in seen and captions.isdisjoint(texts):
            seen.add(things)
            captions.update(texts)
            return scene
    raise RuntimeError(f"no new scene of {CATEGORIES[category].name} in 1000 attempts")
