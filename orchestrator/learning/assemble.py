"""A method put together: its backbone loaded, its own weights made anew, or all of it read back from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from methods import METHODS, find_method
from methods.backbone.clip import Clip
from methods.backbone.load import load_backbone
from methods.base import Method, Task
from orchestrator.config import Settings
from orchestrator.data.imported_features import feed, refuse_unfrozen
from orchestrator.errors import ConfigError
from orchestrator.learning.commits import Commits
from orchestrator.learning.experiment import BackboneConfig, Experiment
from orchestrator.learning.resolve import resolve
from orchestrator.learning.weights import backbone_state, load_state, read_model
from orchestrator.streams.stream import Stream


def load_clip(config: BackboneConfig) -> Clip:
    """The backbone of a configuration, with mistakes reported as the user's."""
    try:
        return load_backbone(config.name, config.weights, sha256=config.sha256)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"backbone: {error}") from error


def make_method(experiment: Experiment, backbone: Clip, stream: Stream | None = None) -> Method:
    """A fresh method on a backbone, its own new weights seeded by the run's seed.

    `stream`: on which it is to run; one of features is refused to methods whose towers are not frozen.
    """
    torch.manual_seed(experiment.run.seed)
    cls = find_method(experiment.run.method)
    served = [cls] if not cls.wraps else [cls, find_method(experiment.method.base)]
    if not backbone.vision.is_plain and not all(each.any_tower for each in served):
        others = ", ".join(name for name in METHODS if find_method(name).any_tower)
        raise ConfigError(
            f"method: {experiment.name} reads parts of CLIP's own towers, and {backbone.name} has others. Choose a "
            f"backbone such as ViT-B-16, or one of {others}."
        )
    try:
        if not cls.wraps:
            method = cls(experiment.method, backbone)
        else:
            retriever = find_method(experiment.method.base)(experiment.base, backbone)
            method = cls(experiment.method, retriever)
    except ValueError as error:
        raise ConfigError(f"method: {error}") from error
    if stream is not None:
        refuse_unfrozen(experiment.run.method, method, backbone, stream)
    most, asked = method.max_frames, experiment.data.num_frames
    if most is not None and asked > most:
        raise ConfigError(
            f"data.num_frames: {asked} frames of a video are more than the {most} that {experiment.run.method} has "
            f"positions for on this backbone. Write data.num_frames={most}."
        )
    return method


def load_model(folder: Path) -> tuple[Method, Settings]:
    """A trained method from a folder that `weights.save_model` wrote (an MLflow artifact `model`).

    Returns the method in evaluation mode and the settings it was trained with.

    Raises:
        FileNotFoundError: if the folder holds no model.
        ValueError: if it does not fit this version.
    """
    trained = read_trained(folder)
    return trained.method, trained.experiment.settings


@dataclass(frozen=True)
class Trained:
    """A trained method in evaluation mode, and what it was made of."""

    method: Method
    experiment: Experiment
    clip: Clip  # its backbone: the tokenizer and the normalisation of frames
    galleries: tuple[
        Tensor, ...
    ] = ()  # of each task (V, ...), as they were stored when it was learned; () where unknown


def read_trained(folder: Path) -> Trained:
    """As `load_model`, with the backbone."""
    weights, description = read_model(folder)
    experiment = resolve(description["settings"])
    clip = load_clip(replace(experiment.backbone, weights="random", sha256=""))  # every tensor is in the folder
    method = make_method(experiment, clip)
    for task in description["tasks"]:
        method.begin_task(Task(**{**task, "categories": tuple(task["categories"])}))
    load_state(method, weights, {})
    return Trained(method.eval(), experiment, clip)


def restore_trained(experiment: Experiment, commits: Commits, tasks: Sequence[Task], stream: Stream) -> Trained:
    """The model that a run's last commit holds, and the galleries that it stored.

    Args:
        experiment: of the run.
        commits: of the run.
        tasks: of its stream.
        stream: which may hold features in the place of videos.

    Raises:
        MissingObject: if the run has no commit of its last task, or `ctvr cache gc` has removed its weights.
    """
    weights, galleries = commits.load(len(tasks))
    clip = feed(load_clip(experiment.backbone), stream)
    method = make_method(experiment, clip)
    pretrained = backbone_state(method)
    for task, gallery in zip(tasks, galleries):
        method.eval()
        method.begin_task(task)
        method.remember(task, gallery)
    load_state(method, weights, pretrained)
    return Trained(method.eval(), experiment, clip, tuple(galleries))
