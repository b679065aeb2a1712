"""The embedded stream of worlds: domains that differ in appearance and vocabulary, of adjustable difficulty.

A task is one world (worlds.py): 480 training, 40 validation and 80 test clips of four frames. Each
parameter (`Dials`) changes one property of the stream and is part of its name, `worlds-5_conflict0_motion0.2`.
`worlds-quick` has fewer pairs and frames, so that a whole sweep takes minutes on two CPU cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.config import build, suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.synthetic.video_files import Clip, VideoFormat, render_files
from ctvr.orchestrator.synthetic.worlds import NAMES, Dials, Scene, caption, draw_scene

VERSION = 1  # increase it when pixels or captions change
TASK_COUNTS = (5, 10, 20, 50)
TOGETHER = 5  # worlds in one folder
SPLITS = ("train", "val", "test")
DRAWN = {"test": (1, 80), "val": (2, 40), "train": (0, 480)}  # in drawing order: key in the seeds, clips per task
DEFAULT = Dials()
FORMAT = VideoFormat(frames=4, size=64, fps=4, intra=True)
SETTINGS: dict[str, Any] = {
    "backbone.name": "tiny-clip-stem",
    "backbone.weights": "shipped",
    "data.num_frames": 4,
    "data.batch_size": 16,
    "optim.epochs": 6,
    "optim.lr_scale": 125,
    "preset": "shapes",  # used if the method has it
}
QUICK = "worlds-quick"
QUICK_PAIRS = 320
QUICK_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "data.num_frames": 2,
    "data.sampling": "linspace",  # includes the first and last frame, which twins share
    "data.batch_size": 32,
    "optim.epochs": 4,
    "optim.lr_scale": 200,
}


def split_dials(name: str) -> tuple[str, Dials]:
    """Split `worlds-5_conflict0` into the stream's name and its parameters.

    Raises:
        ConfigError: for an unknown parameter or a value outside its range.
    """
    written, *parts = name.split("_")
    known, given = [f.name for f in fields(Dials)], {}
    for part in parts:
        dial = part.rstrip("0123456789.-")
        value = part.removeprefix(dial)
        if dial not in known or not value:
            raise ConfigError(
                f"{part!r} of {name} is not a parameter with a value.{suggest(dial, known)} Use a parameter "
                f"and its value, such as conflict0.5; parameters: {', '.join(known)}.",
                "stream",
            )
        given[dial] = value
    try:
        return written, build(Dials, given)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}", "stream") from error


def name_stream(name: str, dials: Dials) -> str:
    """Return the name of a stream with those parameters that differ from their defaults, in a fixed order."""
    changed = {dial: value for dial, value in asdict(dials).items() if value != getattr(DEFAULT, dial)}
    return "_".join([name, *(f"{dial}{value:g}" for dial, value in changed.items())])


def render_worlds(
    root: Path, num_tasks: int = 5, dials: Dials = DEFAULT, seed: int = 0, videos: bool = True
) -> dict[str, Any]:
    """Render the videos below `root` unless they exist, and return the stream's manifest.

    Longer streams begin with the worlds of shorter streams. Each folder has five worlds:
    `root/worlds-v1-seed<seed>/worlds-01-05/<world>`.
    Arguments, errors and the manifest are those of `stream.render_stream`, except for `dials`.
    """
    if num_tasks not in TASK_COUNTS:
        counts = ", ".join(f"worlds-{count}" for count in TASK_COUNTS)
        raise ConfigError(f"worlds-{num_tasks} does not exist", "stream", remedy=f"Use one of: {counts}.")
    folder = Path(root) / name_stream(f"worlds-v{VERSION}-seed{seed}", dials)
    plans = [plan(index, dials, seed) for index in range(num_tasks)]
    for start in range(0, num_tasks, TOGETHER) if videos else ():
        clips = [clip for made in plans[start : start + TOGETHER] for _, clip, _ in made]
        render_files(folder / _part(start), clips, video_format=FORMAT)
    tasks = []
    for index, made in enumerate(plans):
        base = f"{folder.name}/{_part(index)}"
        task: dict[str, Any] = {"name": NAMES[index], "categories": [NAMES[index]]}
        for split in SPLITS:
            task[split] = [{**item, "path": f"{base}/{clip.path}"} for key, clip, item in made if key == split]
        tasks.append(task)
    name = name_stream(f"worlds-{num_tasks}", dials)
    return {"format": 1, "name": name, "protocol": "ctvr", "tasks": tasks, "settings": dict(SETTINGS)}


def render_quick(root: Path, videos: bool = True) -> dict[str, Any]:
    """Render the five worlds with fewer training pairs and return the manifest of `worlds-quick`."""
    made = render_worlds(root, 5, replace(DEFAULT, pairs=QUICK_PAIRS), videos=videos)
    return {**made, "name": QUICK, "settings": dict(QUICK_SETTINGS)}


def _part(index: int) -> str:
    """Return the folder of a world. Five worlds are rendered together, because processes take seconds to start."""
    first = index - index % TOGETHER + 1
    return f"worlds-{first:02d}-{first + TOGETHER - 1:02d}"


@lru_cache(maxsize=64)
def plan(index: int, dials: Dials, seed: int) -> tuple[tuple[str, Clip, dict[str, Any]], ...]:
    """Return (split, clip, item without its path) of every clip of a world."""
    used: set[str] = set()
    return tuple((split, *made) for split in DRAWN for made in _plan_split(index, split, dials, seed, used))


def _plan_split(
    index: int, split: str, dials: Dials, seed: int, used: set[str]
) -> Iterator[tuple[Clip, dict[str, Any]]]:
    """Yield the clips of a split; a caption in the given set is not used again, and new captions are added."""
    key, count = DRAWN[split]
    count = dials.pairs if split == "train" else count
    twins = round(dials.motion * count / 2)
    more = name_stream("", dials)  # other parameters give other videos
    for number in range(count - twins):
        directions = (False, True) if number < twins else (number % 2 == 1,)
        scene, captions = _new_scene([seed, 200 + index, key, number], index, directions, dials, used)
        stems = [f"{split}_{number:04d}{'fb'[backward]}" for backward in directions]
        names = [f"{NAMES[index]}_{stem}{more}" for stem in stems]
        for backward, stem, name, twin, text in zip(directions, stems, names, names[::-1], captions):
            item = {
                "video": name,
                "category": NAMES[index],
                "captions": [text],
                "twin": twin if len(names) == 2 else None,
            }
            yield Clip(f"{NAMES[index]}/{stem}.mp4", scene, backward), item


def _new_scene(
    key: list[int], index: int, directions: tuple[bool, ...], dials: Dials, used: set[str]
) -> tuple[Scene, list[str]]:
    """Return the first scene of the seed `key` whose captions are new; twins have equal words except the direction."""
    for attempt in range(2000):
        seeds = [*key, attempt]
        scene = draw_scene(index, dials, np.random.default_rng(seeds))
        captions = [caption(scene, backward, dials, np.random.default_rng([*seeds, 1])) for backward in directions]
        if used.isdisjoint(captions):
            used.update(captions)
            return scene, captions
    raise RuntimeError(f"no new scene of {NAMES[index]} in 2000 attempts")
