"""The embedded stream of questions: questions about the videos of `shapes-5` with answers of one word.

It has the five tasks of `shapes-5` (four places each) and their videos. Each clip has questions about the color of
its main thing (by its shape), its shape (by its color), and its place. Colors and shapes are answers in all tasks,
places in only one task. The two things of a clip differ in color and shape, so that every question has one answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ctvr.orchestrator.synthetic import stream as shapes
from ctvr.orchestrator.synthetic.scenes import CATEGORIES, Scene

NAME, TASKS = "shapes-qa", 5
SETTINGS: dict[str, Any] = {**shapes.SETTINGS, "optim.epochs": 30, "optim.lr_scale": 20}  # trained from new weights


def render_questions(root: Path, videos: bool = True) -> dict[str, Any]:
    """Return the stream's manifest; render its videos below `root` unless they exist.

    Arguments and errors are those of `synthetic.stream.render_stream`.
    """
    manifest = shapes.render_stream(root, TASKS, videos=videos)
    scenes = {clip.path: clip.scene for clip, _ in shapes.plan(0)}
    for task in manifest["tasks"]:
        for split in shapes.SPLITS:
            for item in task[split]:
                del item["twin"]
                scene = scenes[item["path"].partition("/")[2]]
                assert isinstance(scene, Scene)
                questions = make_questions(scene)
                item["captions"], item["answers"] = list(questions), list(questions.values())
    return manifest | {"name": NAME, "protocol": "qa", "settings": dict(SETTINGS)}


def make_questions(scene: Scene) -> dict[str, str]:
    """Return the questions of a scene with their answers; if an attribute changes, they are about the other object."""
    category = CATEGORIES[scene.category]
    of_colour = scene.other if category.motion == "recolour" else scene.main
    of_shape = scene.other if category.motion == "morph" else scene.main
    return {
        f"what color is the {of_colour.shape}?": of_colour.colour,
        f"what is the {of_shape.colour} thing?": of_shape.shape,
        "where is it?": category.place,
    }
