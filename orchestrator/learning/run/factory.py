"""Construction of methods: load the backbone, initialize new weights, or read a trained method from a folder."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods import find_method
from ctvr.methods.backbone import load
from ctvr.methods.backbone.architectures import VECTORS
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.compiled import CompileFailed, compile_blocks
from ctvr.methods.backbone.entry_points import entry_point
from ctvr.methods.backbone.own_architecture import is_own
from ctvr.methods.backbone.umt import Umt
from ctvr.methods.backbone.vectors import Vectors
from ctvr.methods.backbone.weight_settings import WeightSettings, saved_settings
from ctvr.methods.base import Method, Task
from ctvr.methods.images.resnet import RESNETS, ResNet18
from ctvr.methods.settings import SettingError
from ctvr.methods.user_paths import expand_path
from ctvr.orchestrator.addresses import require_allowed
from ctvr.orchestrator.config import setting_error
from ctvr.orchestrator.data.batches import seed_of, tasks_of
from ctvr.orchestrator.data.imported_features import attach_features, refuse_unfrozen, saved_vectors
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.learning.evaluation.stored_galleries import repeat_tasks
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.method_state import WEIGHT_SETTINGS, PretrainedSnapshot, load_state, read_model
from ctvr.orchestrator.learning.run.tower_parts import refuse_misfit
from ctvr.orchestrator.learning.run.upgrade import TwoTokenizers, make_upgraded, new_experiment
from ctvr.orchestrator.learning.run.vector_towers import check_method, check_settings, make_vectors
from ctvr.orchestrator.settings.experiment import BackboneConfig, Experiment
from ctvr.orchestrator.settings.resolve import check_domain, named_in, resolve
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Stream

REMEMBERED = 10_000  # number of texts whose tokens are kept while a model with two backbones is queried


def load_clip(config: BackboneConfig, saved: WeightSettings | None = None) -> Clip:
    """Load the backbone of a configuration; raise errors as ConfigError. See `load.load_backbone` for `saved`."""
    _require_named(config.name, "backbone.name")
    try:
        known = (config.sha256, config.vocabulary, config.chosen, saved)
        return load.load_backbone(config.name, config.weights, 0, *known)
    except SettingError as error:
        raise setting_error(error, "backbone") from error
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(error, "backbone") from error


def _require_named(name: str, setting: str) -> None:
    """Refuse an architecture's path that a file (preset, stream, saved model) contains and the user has not given."""
    if is_own(name):
        require_allowed(os.path.abspath(expand_path(name)), setting)


def check_backbone(experiment: Experiment) -> None:
    """Refuse an unknown backbone, tag or weights file of a run on videos, before videos are rendered or decoded.

    Raises:
        ConfigError: if one of these is unknown, is for imported features only, is a path that the user did not name,
            or is of another kind than the method needs.
    """
    if find_method(experiment.run.method).domain == "images":
        return
    check_settings(experiment)
    towers = {"backbone": experiment.backbone}
    towers |= {"upgrade": experiment.upgrade.tower} if experiment.upgrade.task else {}
    for group, config in towers.items():
        _require_named(config.name, "backbone.name" if group == "backbone" else "upgrade.backbone")
        try:
            load.check_backbone(config.name, config.weights, config.sha256, config.vocabulary, config.chosen, group)
        except SettingError as error:
            said = setting_error(error, group)
            raise (said.at("upgrade.backbone") if said.settings == ("upgrade.name",) else said) from error
        except (ValueError, FileNotFoundError) as error:
            raise ConfigError(error, "upgrade.backbone" if group == "upgrade" else group) from error
        if is_own(config.name) or entry_point(config.name):
            refuse_misfit(experiment, own_tower(config.name, str(load.describe_architecture(config.name))))


@functools.lru_cache(maxsize=1)
def own_tower(name: str, described: str) -> Clip:
    """Build the backbone of a file, folder or entry point on the device `meta`, to inspect its parts.

    `described`, its architecture as text, is part of the cache key, so that an edited file is read again.
    """
    weights = "random" if is_own(name) else "shipped"
    return load_clip(BackboneConfig(name=name, weights=weights)).to("meta")


def load_tower(
    experiment: Experiment, stream: Stream | None = None, saved: WeightSettings | None = None
) -> Clip | ResNet18:
    """Load the backbone of a run: a CLIP, or a network for images initialized from the run's seed.

    Precomputed features of `stream`, the run's stream, replace a tower. See `load.load_backbone` for `saved`.

    Raises:
        ConfigError: if the method, the stream and the backbone do not fit together.
    """
    config = experiment.backbone
    if stream is not None:
        check_domain(experiment.run.method, stream)
        if experiment.evaluation.oracle_task and protocol_of(stream).kind != "ctvr":
            raise ConfigError(
                f"true needs a stream of the protocol ctvr, but {stream.name} has {stream.protocol}, which "
                "gives every query its task",
                "evaluation.oracle_task",
                remedy="Use false.",
            )
        if protocol_of(stream).kind not in {"ctvr", "cvlm"}:
            for name in ("reencode", "unlearned_tasks", "also", "distractors", "costs", "metrics"):
                if getattr(experiment.evaluation, name):
                    raise ConfigError(
                        f"needs captions that search videos, but {stream.name} has the protocol {stream.protocol}",
                        f"evaluation.{name}",
                        remedy="Omit it.",
                    )
    if find_method(experiment.run.method).domain != "images":
        if stream is not None and stream.has_features and stream.text_features:
            return make_vectors(experiment, stream)
        if stream is not None and config.name == VECTORS:
            raise ConfigError(
                f"requires features of captions, which stream {stream.name} lacks",
                f"backbone.name={VECTORS}",
                remedy="Omit it.",
            )
        clip = load_clip(config, saved)
        return attach_features(clip, stream) if stream is not None and stream.has_features else clip
    if experiment.run.workers > 1:
        raise ConfigError(
            f"a method for images trains on one worker (got {experiment.run.workers}), because each worker "
            "would normalize its own part of a batch",
            "workers",
            write=("workers=1",),
        )
    if experiment.evaluation.log_losses:
        raise ConfigError(
            "true needs captions and videos, but this method is for images",
            "evaluation.log_losses",
            remedy="Use false.",
        )
    if config.chosen:
        raise ConfigError(
            f"applies to CLIP models only, not to {config.name}",
            f"backbone.{next(iter(config.chosen))}",
            remedy="Omit it.",
        )
    if config.name not in RESNETS or config.weights != "random":
        raise ConfigError(
            f"backbone: {config.name} with weights {config.weights!r} is not for images. Use "
            f"backbone.name={' or '.join(RESNETS)} and backbone.weights=random."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(experiment.run.seed, "backbone"))
        return ResNet18(RESNETS[config.name])


def load_backbone(experiment: Experiment, stream: Stream, device: torch.device) -> Clip | ResNet18:
    """Load the backbone of a run, with compiled blocks if requested.

    Raises:
        ConfigError: if torch cannot compile on this machine.
    """
    backbone = load_tower(experiment, stream)
    if experiment.run.compile:
        try:
            compile_blocks(backbone, device)
        except CompileFailed as error:
            raise ConfigError(str(error)) from error
    return backbone


def make_method(experiment: Experiment, backbone: Clip | ResNet18, stream: Stream | None = None) -> Method:
    """Build a new method on a backbone; the run's seed initializes its new weights.

    If `stream`, the run's stream, has precomputed features, the method's towers must be frozen.
    """
    cls = find_method(experiment.run.method)
    if isinstance(backbone, ResNet18):
        torch.manual_seed(experiment.run.seed)
        return cls(experiment.method, _wrapped(experiment, cls, backbone))
    known = experiment.capabilities
    if isinstance(backbone, Umt) and not known.needs_umt:
        raise ConfigError(
            f"{experiment.name} needs CLIP's towers, but {backbone.name} has UMT's", "method", remedy="Use umt."
        )
    if isinstance(backbone, Vectors):
        check_method(experiment)
    elif not isinstance(backbone, Umt):
        refuse_misfit(experiment, backbone)
    torch.manual_seed(experiment.run.seed)
    try:
        group = "base"
        wrapped = _wrapped(experiment, cls, backbone)
        group = "method"
        method = cls(experiment.method, wrapped)
        _ = method.declared  # a fault of the class is reported here
    except SettingError as error:
        raise setting_error(error, group) from error
    except ValueError as error:
        raise ConfigError(str(error), group) from error
    if stream is not None:
        refuse_unfrozen(experiment.run.method, method, backbone, stream)
    most, asked = method.max_frames, experiment.data.num_frames
    if most is not None and asked > most:
        raise ConfigError(
            f"{experiment.run.method} has positions for {most} frames on this backbone (got {asked})",
            "data.num_frames",
            write=(f"data.num_frames={most}",),
        )
    return method


def _wrapped(experiment: Experiment, cls: type[Method], backbone: nn.Module) -> nn.Module:
    """Return the module that a method is built on: the backbone, or the base method of a strategy."""
    return backbone if not cls.wraps else find_method(experiment.method.base)(experiment.base, backbone)


@dataclass(frozen=True)
class TrainedModel:
    """Trained method in evaluation mode, with its configuration and backbone."""

    method: Method
    experiment: Experiment
    clip: Clip | ResNet18  # the backbone; a CLIP also has the tokenizer and the normalization of frames
    galleries: tuple[Tensor, ...] = ()  # features (V, ...) of each task, as stored after it was learned; () if unknown
    learned: int = 0  # number of first tasks that the old model of an upgrade has learned (`Stream.learned`)
    ranks: Mapping[str, Rank] = field(default_factory=dict)  # query -> its rank after the last task; {} if unknown


def load_trained(folder: Path) -> TrainedModel:
    """Load a trained method from a folder that `method_state.save_model` wrote (an MLflow artifact `model`).

    Raises:
        FileNotFoundError: if the folder does not contain a model.
        ValueError: if the model is incompatible with this version.
    """
    weights, description = read_model(folder)
    with named_in(str(folder / "model.json")):
        experiment = resolve(description["settings"])
    tower, upgrade = experiment.backbone, experiment.upgrade  # the folder has all tensors; weights files are not read
    plain: dict[str, Any] = {"sha256": "", "activation": "", "mean": (), "resize_mode": ""}
    drawn = replace(
        experiment,
        backbone=replace(tower, weights=_any_weights(tower.name), **plain),
        upgrade=replace(upgrade, weights=_any_weights(upgrade.backbone), **plain),
    )
    saved = _saved(folder / "model.json", description.get(WEIGHT_SETTINGS, {}))

    def tower_of(config: Experiment, group: str, prefix: str) -> Clip | ResNet18:
        if config.backbone.name == VECTORS:
            return saved_vectors(weights, str(folder), prefix)
        return load_tower(config, saved=saved.get(group))

    clip = tower_of(drawn, "backbone", "old." if upgrade.task else "")
    method = make_method(experiment, clip)
    earlier = [_task(each) for each in description.get("earlier_tasks", ())]
    if upgrade.task:
        newer = tower_of(new_experiment(drawn), "upgrade", "base.")
        method, clip = _upgraded(drawn, method, clip, newer, earlier)
    for task in description["tasks"]:
        method.begin_task(_task(task))
    load_state(method, weights, {})
    return TrainedModel(method.eval(), experiment, clip, learned=len(earlier))


def _any_weights(backbone: str) -> str:
    """Return the value of `backbone.weights` with which a backbone needs no file of weights."""
    return "shipped" if entry_point(backbone) else "random"


def _saved(file: Path, described: Any) -> dict[str, WeightSettings]:
    """Read the settings of the weights of each backbone; empty for a model of an older version."""
    try:
        return {group: saved_settings(each) for group, each in dict(described).items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{WEIGHT_SETTINGS}: {error}", file) from error


def _task(saved: dict[str, Any]) -> Task:
    return Task(**{**saved, "categories": tuple(saved["categories"])})


def _upgraded(
    experiment: Experiment,
    old: Method,
    former: Clip | ResNet18,
    clip: Clip | ResNet18,
    earlier: Sequence[Task],
    stream: Stream | None = None,
) -> tuple[Method, Clip]:
    """Return the method after an upgrade and its backbone, which tokenizes captions for both models.

    Args:
        experiment: a configuration with `upgrade.*`.
        old, former: untrained method on the backbone before the upgrade, and this backbone.
        clip: the backbone after the upgrade.
        earlier: tasks that the old model learned.
        stream: see `make_method`.
    """
    assert isinstance(clip, Clip)  # `check_upgrade` admits streams of videos and their features only
    assert isinstance(former, Clip)
    tokens = TwoTokenizers(clip.tokenize, former.tokenize, experiment.data.max_tokens, most=REMEMBERED)
    clip.tokenize = tokens
    new = make_method(new_experiment(experiment), clip, stream)
    return make_upgraded(experiment, new, old, earlier, tokens), clip


def restore_from_commits(experiment: Experiment, commits: Commits, done: int, stream: Stream) -> TrainedModel:
    """Load the model and the stored galleries from a run's last commit.

    Args:
        experiment: configuration of the run.
        commits: commits of the run.
        done: number of finished tasks.
        stream: stream of the run, which may have precomputed features instead of videos (with an upgrade, from
            `with_newer`).

    Raises:
        MissingObject: if the run lacks a commit of that task, or `ctvr cache gc` removed its weights.
    """
    weights, galleries = commits.load(done)
    clip = load_tower(experiment, stream)
    method = make_method(experiment, clip)
    if 0 < experiment.upgrade.task <= done:
        whole, stream = stream, stream.after(experiment.upgrade.task - 1)
        newer = load_tower(new_experiment(experiment), stream)
        method, clip = _upgraded(experiment, method, clip, newer, tasks_of(whole)[: stream.learned], stream)
    method.gallery_is_fresh = method.declared.reencodes_gallery or protocol_of(stream).reencodes_gallery
    pretrained = PretrainedSnapshot(method)
    repeat_tasks(method, stream, galleries, torch.device("cpu"), lambda task: method.eval().begin_task(task))
    load_state(method, weights, pretrained)
    ranks = commits.record(done).ranks
    return TrainedModel(method.eval(), experiment, clip, tuple(galleries), stream.learned, ranks)
