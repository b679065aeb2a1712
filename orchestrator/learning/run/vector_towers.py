"""Towers of a run on imported features of videos and captions, and the checks that its method and settings fit them."""

from __future__ import annotations

from ctvr.methods import find_method
from ctvr.methods.backbone.architectures import IMPORTED, VECTORS
from ctvr.methods.backbone.vectors import Vectors
from ctvr.methods.base import Method
from ctvr.orchestrator.data.imported_features import check_center, features_name, load_vectors
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.streams.stream import Stream

USE_HEADS = "Use head_linear, head_low_rank, head_mlp or head_ridge, or a strategy that wraps one of them."


def check_settings(experiment: Experiment) -> None:
    """Check the settings that depend on whether the captions of a stream have features, without the stream.

    Raises:
        ConfigError: for a backbone next to imported features, or `data.center` without them.
    """
    config, stream = experiment.backbone, experiment.run.stream
    if config.weights == IMPORTED and config.name != VECTORS:  # the stream sets both; the user changed the name
        raise _unused_backbone(config.name, stream)
    check_center(experiment.data, config.name == VECTORS, stream)


def check_method(experiment: Experiment) -> None:
    """Check that a method works on towers over vectors.

    Raises:
        ConfigError: if it works inside CLIP's towers.
    """
    if not experiment.capabilities.fits_vectors:
        fault = f"{experiment.name} works inside CLIP's towers, but the stream has features of videos and captions"
        raise ConfigError(fault, "method", remedy=USE_HEADS)


def make_vectors(experiment: Experiment, stream: Stream) -> Vectors:
    """Build the towers over a stream's features of videos and captions.

    Raises:
        ConfigError: for another backbone, or a method without training if captions and videos differ in width.
    """
    if experiment.backbone.name != VECTORS:
        raise _unused_backbone(experiment.backbone.name, stream.name)
    towers = load_vectors(stream, experiment.data.center)
    if fault := _width_fault(experiment, features_name(stream), towers):
        raise ConfigError(fault, "method", remedy=USE_HEADS)
    return towers


def unfit_baseline(experiment: Experiment, stream: Stream) -> str:
    """Return the reason why a method without training cannot run on a stream; "" if it can, or if it is trained.

    Raises:
        ConfigError: if the method works inside CLIP's towers, which the stream's features replace.
    """
    if experiment.backbone.name != VECTORS or not stream.text_features:
        return ""
    check_method(experiment)
    return "" if _learns(experiment) else _width_fault(experiment, stream.name, load_vectors(stream))


def _width_fault(experiment: Experiment, stream: str, towers: Vectors) -> str:
    text, video = towers.text.width, towers.vision.width
    if text == video or _learns(experiment):
        return ""
    return f"{experiment.name} is not trained, but in stream {stream} captions have width {text} and videos {video}"


def _learns(experiment: Experiment) -> bool:
    has_parameters = find_method(experiment.run.method).param_groups is not Method.param_groups
    return has_parameters or bool(experiment.capabilities.learns_in_end_task)


def _unused_backbone(backbone: str, stream: str) -> ConfigError:
    fault = f"is not used: stream {stream} has features of its videos and captions"
    remedy = "Omit it; if the stream sets it, import the stream again."
    return ConfigError(fault, f"backbone.name={backbone}", remedy=remedy)
