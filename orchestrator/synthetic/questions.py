"""The embedded stream of questions: what the videos of `shapes-5` show, asked in words and answered in one.

Five tasks of four places each, as in `shapes-5`, and the same videos. Of every clip are asked the colour of its main
thing by its shape, its shape by its colour, and where it is; colours and shapes are answers in all tasks, places in one
alone. The two things of a clip share neither colour nor shape, so that every question has one answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ctvr.orchestrator.synthetic import stream as shapes
from ctvr.orchestrator.synthetic.scenes import CATEGORIES, Scene

NAME, TASKS = "shapes-qa", 5
SETTINGS: dict[str, Any] = {**shapes.SETTINGS, "optim.epochs": 30, "optim.lr_scale": 20}  # towers with new weights


def render_questions(root: Path, seed: int = 0, videos: bool = True) -> dict[str, Any]:
    """The stream's manifest; its videos are rendered below `root` unless they are there.

    Arguments and errors as of `synthetic.stream.render_stream`.
    """
    manifest = shapes.render_stream(root, TASKS, seed, videos=videos)
    scenes = {clip.path: clip.scene for clip, _ in shapes.plan(seed)}
    for task in manifest["tasks"]:
        for split in shapes.SPLITS:
            for item in task[split]:
                del item["twin"]
                scene = scenes[item["path"].partition("/")[2]]
                assert isinstance(scene, Scene)
                told = asked(scene)
                item["captions"], item["answers"] = list(told), list(told.values())
    return manifest | {"name": NAME, "protocol": "qa", "settings": dict(SETTINGS)}


def asked(scene: Scene) -> dict[str, str]:
    """Questions of a scene, each with its answer; of a thing whose colour or shape changes, the other is asked for."""
    category = CATEGORIES[scene.category]
    of_colour = scene.other if category.motion == "recolour" else scene.main
    of_shape = scene.other if category.motion == "morph" else scene.main
    return {
        f"what color is the {of_colour.shape}?": of_colour.colour,
        f"what is the {of_shape.colour} thing?": of_shape.shape,
        "where is it?": category.place,
    }
