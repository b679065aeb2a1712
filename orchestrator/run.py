"""One run: settings in, a record out. Everything below the command line and Ray meets here.

`Experiment` is the complete, checked configuration; `execute` trains and evaluates it in this process
(or in each of several processes that share a torch process group).
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

import methods
from methods import CONFIGURATIONS, find_method
from methods import base as methods_base
from methods.base import Method
from methods.layers import clip as clip_module
from methods.layers.clip import TINY, TINY_FOLDER, Clip, load_backbone
from orchestrator.checkpoint import Commits, Record, load_state, read_model
from orchestrator.config import ConfigError, Settings, build, flatten, suggest, under
from orchestrator.data import DataConfig, FrameSource, StreamData, check_pairs
from orchestrator.evaluate import EvaluationConfig
from orchestrator.features import frozen_features
from orchestrator.loop import Loop, LoopConfig, Report, Workers
from orchestrator.optimizer import OptimConfig
from orchestrator.prepare import prepare_stream
from orchestrator.reuse import Prefixes, Reads, WatchedSettings, watched
from orchestrator.store import Store, digest_file, digest_of
from orchestrator.streams import Stream, load_stream

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which CLIP every method starts from."""

    name: str = "ViT-B-32-quickgelu"  # tiny-clip or an open_clip architecture
    weights: str = "openai"  # shipped (tiny-clip), an open_clip tag, a local file, or random
    sha256: str = ""  # of a local file that is a pickle (.pt): it is read only if it is the one you mean


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings without a prefix."""

    method: str
    stream: str
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    workers: int = 1  # processes that train one model together
    threads: int = 1  # of torch on a CPU

    def __post_init__(self) -> None:
        if self.workers < 1 or self.threads < 1:
            raise ValueError("workers and threads count processes and threads and must be >= 1.")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must be a number of 64 bits, got {self.seed}. Use a small one.")


GROUPS: dict[str, type] = {
    "backbone": BackboneConfig,
    "data": DataConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
}
# Content digests stand for the names of the stream and of a weights file
NOT_DECISIVE = (
    "stream",
    "backbone.weights",
    "backbone.sha256",
    "data.load_threads",
    "data.skip_missing",
    "evaluation.batch_size",
    "evaluation.chunk",
)

# What the features of an untrained model depend on
SEEN_UNTRAINED = (
    "backbone.",
    "data.num_frames",
    "data.image_size",
    "data.decoder",
    "data.cache_features",
    "evaluation.split",
    "precision",
)


@dataclass(frozen=True)
class Experiment:
    """A complete configuration. `settings` holds every value, flat and dotted, defaults included."""

    run: RunConfig
    backbone: BackboneConfig
    data: DataConfig
    optim: OptimConfig
    evaluation: EvaluationConfig
    method: Any  # an instance of the method's Config
    base: Any | None  # of the wrapped retriever's Config, for a strategy
    settings: Settings = field(default_factory=dict)
    presets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The row of a table that this is: the method, or the configuration of it that has a name of its own."""
        for name, (method, preset) in CONFIGURATIONS.items():
            if method == self.run.method and preset in self.presets:
                return name
        return self.run.method

    def key(self, stream: Stream, frames: str = "") -> str:
        """Digest of all that decides the result: settings, stream, seed, frames, backbone weights, code.

        Args:
            stream: as it is used, without the videos that were left out.
            frames: `frames_digest` of the stream; empty names a plan, whose videos are not read yet.
        """
        decisive = {name: value for name, value in self.settings.items() if name not in NOT_DECISIVE}
        return digest_of(
            {
                "settings": decisive,
                "files": [_content(value) for value in decisive.values()],
                **self._surroundings(stream, frames),
            }
        )

    def _surroundings(self, stream: Stream, frames: str) -> dict[str, str]:
        """What decides a result besides the settings."""
        return {
            "stream": stream.digest,
            "frames": frames,
            "backbone": _backbone_digest(self.backbone),
            "code": code_digest(self.run.method, getattr(self.method, "base", None)),
        }

    def prefixes(self, store: Store, stream: Stream, frames: str) -> Prefixes:
        """The tasks that this run may share with others of the same code, stream, frames and backbone."""
        return Prefixes(store, digest_of(self._surroundings(stream, frames)), self.settings, _content)

    def watched(self, reads: Reads) -> Experiment:
        """The same experiment; whatever is looked at in it is noted."""
        groups = {group: watched(getattr(self, group), group, reads) for group in GROUPS}
        return Experiment(
            watched(self.run, "", reads),
            **groups,
            method=watched(self.method, "method", reads),
            base=None if self.base is None else watched(self.base, "base", reads),
            settings=WatchedSettings(self.settings, reads),  # type: ignore[arg-type]
            presets=self.presets,
        )


def frames_digest(stream: Stream, source: FrameSource, splits: Sequence[str]) -> str:
    """sha256 over the content address of every frame that a run can see: other footage is another run."""
    items = (item for index in range(len(stream.tasks)) for split in splits for item in stream.items(index, split))
    return digest_of([source.key(item) for item in items])


def _content(value: Any) -> list[str]:
    """Digests of the file or folder that a setting names; empty if it names none."""
    if not isinstance(value, str):
        return []
    path = Path(value)
    if "/" not in value and not path.suffix:
        return []
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [digest_file(file) for file in files if file.is_file()]


def presets_of(method: str) -> dict[str, dict[str, Any]]:
    """A method's presets; `paper`, the defaults, is always there."""
    method = CONFIGURATIONS.get(method, (method, ""))[0]
    return {"paper": {}, **_find(method).PRESETS}


def preset_settings(method: str, presets: Sequence[str], overrides: Mapping[str, Any]) -> Settings:
    """What presets of a method set, the later ones winning.

    A strategy's preset knows the retriever that the strategy wraps by default. Where `overrides` name another
    one, `base.*` come from that retriever's own preset of the same name, if it has one.

    Raises:
        ConfigError: for an unknown preset.
    """
    cls, known, merged = _find(method), presets_of(method), Settings()
    for preset in presets:
        if preset not in known:
            raise ConfigError(
                f"preset: {method} has none called {preset!r}.{suggest(preset, known)} Known: {', '.join(known)}."
            )
        settings = known[preset]
        if cls.wraps:
            own = settings.get("method.base", cls.Config().base)
            base = str(overrides.get("method.base", own))
            if base != own:
                of_base = under(presets_of(base).get(preset, {}), "method")
                settings = {key: value for key, value in settings.items() if not key.startswith("base.")}
                settings |= {f"base.{key}": value for key, value in of_base.items()}
        merged.update(settings)
    return merged


def _find(name: str) -> type[Method]:
    try:
        return find_method(name)
    except ValueError as error:
        raise ConfigError(f"method: {error}") from error


def resolve(
    overrides: Mapping[str, Any], recommended: Mapping[str, Any] | None = None, presets: Sequence[str] = ()
) -> Experiment:
    """Check a configuration and fill in what it leaves open.

    Later wins: defaults, the stream's recommended settings, the presets in order, the overrides.

    Args:
        overrides: flat dotted settings as the user gave them; must hold `method` and `stream`.
        recommended: `Stream.settings`.
        presets: names from the method's PRESETS.

    Raises:
        ConfigError: for an unknown method, preset or setting, or a value out of its range.
    """
    if "method" not in overrides:
        raise ConfigError("method: is required. Add --method NAME; `ctvr methods` lists them.")
    name = str(overrides["method"])
    if name in CONFIGURATIONS:
        name, preset = CONFIGURATIONS[name]
        overrides, presets = {**overrides, "method": name}, (preset, *presets)
    cls = _find(name)
    merged: Settings = {key: value for key, value in (recommended or {}).items() if key != "preset"}
    merged.update(preset_settings(name, presets, overrides))
    merged.update(overrides)
    _refuse_unknown_groups(merged)
    run = build(RunConfig, {key: value for key, value in merged.items() if "." not in key})
    groups: dict[str, Any] = {group: build(config, under(merged, group), group) for group, config in GROUPS.items()}
    method: Any = _build_method(cls, merged, groups["data"], "method")
    base: Any = None
    if cls.wraps:
        base = _build_base(name, method, merged, groups["data"])
    elif under(merged, "base"):
        raise ConfigError(f"base.{next(iter(under(merged, 'base')))}: {name} wraps no other method. Leave it out.")
    if groups["data"].batch_size % run.workers:
        raise ConfigError(
            f"data.batch_size: {groups['data'].batch_size} pairs cannot be dealt to workers={run.workers}. "
            "Make it a multiple."
        )
    settings = flatten(run)
    for group, value in groups.items():
        settings.update(flatten(value, group))
    settings.update(flatten(method, "method"))
    if base is not None:
        settings.update(flatten(base, "base"))
    return Experiment(run, **groups, method=method, base=base, settings=settings, presets=tuple(presets))


def _build_method(cls: type[Method], settings: Settings, data: DataConfig, prefix: str) -> Any:
    """The settings of a method; where they depend on the frames of a video, the data's setting is the default."""
    values = under(settings, prefix)
    if any(f.name == "num_frames" for f in fields(cls.Config)):
        values = {"num_frames": data.num_frames, **values}
    made: Any = build(cls.Config, values, prefix)
    if cls.only_frames(made) not in {None, data.num_frames}:
        raise ConfigError(
            f"{prefix}.num_frames: {cls.only_frames(made)} is not data.num_frames={data.num_frames}, the frames of a "
            "video. Leave it out, or change data.num_frames."
        )
    return made


def _build_base(name: str, method: Any, settings: Settings, data: DataConfig) -> Any:
    """The settings of the retriever that strategy `name` wraps, if it can wrap it at all."""
    wrapped = _find(method.base)
    if wrapped.wraps:
        raise ConfigError(
            f"method.base: {name} cannot wrap {method.base}, which wraps a retriever itself: base.* has room for "
            "the settings of one retriever. Name a retriever, such as clip4clip."
        )
    base = _build_method(wrapped, settings, data, "base")
    try:
        _find(name).check_base(method, wrapped, base)
    except ValueError as error:
        raise ConfigError(f"method.base: {name} cannot wrap {method.base}: {error}") from error
    return base


def _refuse_unknown_groups(settings: Mapping[str, Any]) -> None:
    known = [*GROUPS, "method", "base"]
    plain = [f.name for f in fields(RunConfig)]
    for name in settings:
        group, dot, _ = name.partition(".")
        if dot and group not in known:
            raise ConfigError(f"{name}: no such setting.{suggest(group, known)} Groups: {', '.join(known)}.")
        if not dot and name not in plain:
            every = [*plain, *(f"{g}.{f.name}" for g, c in GROUPS.items() for f in fields(c))]
            hint = suggest(name, every) or f" Settings without a group: {', '.join(plain)}."
            raise ConfigError(f"{name}: no such setting.{hint}")


def code_digest(method: str, base: str | None = None) -> str:
    """sha256 over the source of everything that computes a result: the method, its layers, the loop."""
    from orchestrator import checkpoint, data, decode, evaluate, features, loop, metrics, optimizer

    core = (checkpoint, data, decode, evaluate, features, loop, metrics, optimizer)
    files = {Path(inspect.getfile(m)) for m in core}
    files |= {Path(inspect.getfile(methods_base)), *Path(inspect.getfile(clip_module)).parent.glob("*.py")}
    for name in filter(None, (method, base)):
        files |= {Path(inspect.getfile(c)) for c in find_method(name).__mro__ if c.__module__.startswith("methods.")}
    digest = hashlib.sha256()
    root = Path(inspect.getfile(methods)).parent.parent
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _backbone_digest(config: BackboneConfig) -> str:
    shipped = [digest_file(file) for file in sorted(TINY_FOLDER.iterdir()) if config.name == TINY and file.is_file()]
    file = Path(config.weights)
    return digest_of([shipped, digest_file(file) if file.is_file() else config.weights])


def load_clip(config: BackboneConfig) -> Clip:
    """The backbone of a configuration, with mistakes reported as the user's."""
    try:
        return load_backbone(config.name, config.weights, sha256=config.sha256)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"backbone: {error}") from error


def make_method(experiment: Experiment, backbone: Clip) -> Method:
    """A fresh method on a backbone, its own new weights seeded by the run's seed."""
    torch.manual_seed(experiment.run.seed)
    cls = find_method(experiment.run.method)
    try:
        if not cls.wraps:
            return cls(experiment.method, backbone)  # type: ignore[call-arg]
        retriever = find_method(experiment.method.base)(experiment.base, backbone)  # type: ignore[call-arg]
        return cls(experiment.method, retriever)  # type: ignore[call-arg]
    except ValueError as error:
        raise ConfigError(f"method: {error}") from error


@dataclass(frozen=True)
class Places:
    """Where things are. No result depends on them."""

    root: Path  # the runs folder: videos of the embedded streams, manifests, reports
    store: str = ""  # URI of the object store; empty = <root>/store
    videos: Path | None = None  # base folder of a manifest's videos, if not the manifest's own

    def open_store(self) -> Store:
        return Store.open(self.store or str(self.root / "store"))  # copies of remote objects: $CTVR_CACHE


@dataclass
class Result:
    """What `execute` returns."""

    key: str
    record: Record
    method: Method
    stream: Stream
    resumed: int  # tasks that had been finished before
    reused: int = 0  # of these, tasks that another run had trained


def splits_of(experiment: Experiment, stream: Stream) -> tuple[str, ...]:
    """Splits that a run reads: for training, for evaluation and, if that is another, for the choice of epochs.

    Raises:
        ConfigError: if it asks for validation videos and the stream has none.
    """
    evaluation = experiment.evaluation
    chosen = evaluation.selects_on(stream.has_val)
    for setting, split in (("evaluation.split", evaluation.split), ("evaluation.select_split", chosen)):
        if split == "val" and not stream.has_val:
            raise ConfigError(
                f"{setting}: stream {stream.name} has no validation videos. Write {setting}=test "
                "(choices are then made on test videos, and tables say so)."
            )
    return tuple(dict.fromkeys(("train", evaluation.split, chosen or evaluation.split)))


def trains(experiment: Experiment) -> bool:
    """Whether anything is trained, so that a run depends on its seed at all: zero-shot CLIP has nothing to train."""
    cls = find_method(experiment.run.method)
    return experiment.optim.epochs > 0 and cls.param_groups is not Method.param_groups


def execute(
    experiment: Experiment,
    places: Places,
    workers: Workers | None = None,
    report: Report | None = None,
    fresh: bool = False,
    reuse: bool = True,
    on_ready: Callable[[str, Method, StreamData, Commits], None] | None = None,
) -> Result:
    """Train and evaluate one configuration, from its last finished task on.

    Args:
        experiment: from `resolve`.
        places: where videos and store are.
        workers: this process among those that train together.
        report: called after every task.
        fresh: ignore finished tasks of an earlier run with the same key, and of all others.
        reuse: take over tasks that another run has finished where the results cannot differ.
        on_ready: called once before the first task with key, method, data and commits.
    """
    workers = workers or Workers(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    complete, reads = experiment, Reads(NOT_DECISIVE)
    experiment = complete.watched(reads)  # from here on everything that is read is noted
    reads.note("workers")  # they are counted by `workers.size`, not by the setting
    if workers.device.type == "cpu":
        torch.set_num_threads(experiment.run.threads)
    else:
        _make_cuda_repeatable()
    store = places.open_store()
    stream = load_stream(experiment.run.stream, places.root, places.videos)
    splits = splits_of(experiment, stream)
    backbone = load_clip(experiment.backbone)
    source = FrameSource(store, experiment.data, backbone.image_size)
    if workers.rank == 0:  # one worker decodes what is missing, the others find it in the store
        prepare_stream(stream, source, splits, experiment.data.skip_missing)
    workers.agree(None)
    stream, _ = prepare_stream(stream, source, splits, experiment.data.skip_missing, progress=False)
    if trains(experiment):
        check_pairs(stream, experiment.data, workers.size)
    make_data = partial(StreamData, stream, source, backbone.tokenize, backbone.mean, backbone.std)
    data = make_data(experiment.data, workers.device)
    frames = frames_digest(stream, source, splits)
    key = complete.key(stream, frames)
    if workers.agree(key) != key:
        raise ConfigError(
            "workers: they see different videos, weights or code. Share --videos and --store, update all."
        )
    shared = complete.prefixes(store, stream, frames) if reuse and not fresh else None
    commits = Commits(store, key if not fresh else workers.agree(f"{key}-{_nonce()}"), shared)
    if workers.rank == 0 and (taken := commits.take_over(len(stream.tasks))):
        log.info("%d tasks are taken over from a run that did the same so far", taken)
    workers.agree(None)
    zero_shot = workers.agree(zero_shot_curve(experiment, stream, data, backbone, store) if workers.rank == 0 else None)
    method = make_method(experiment, backbone).to(workers.device)
    data = data.with_features(frozen_features(method, store, experiment.run.precision))
    config = LoopConfig(experiment.optim, experiment.evaluation, experiment.run.seed, experiment.run.precision)
    loop = Loop(method, data, config, commits, workers, report, zero_shot, reads)
    if on_ready is not None:
        on_ready(key, method, data, commits)
    resumed = commits.finished(len(stream.tasks))
    reused = min(commits.reused, resumed)
    return Result(key, loop.run(), method, stream, resumed, reused)


def _make_cuda_repeatable() -> None:
    """Ask CUDA for kernels that give the same numbers twice, in full float32.

    `CUBLAS_WORKSPACE_CONFIG` must be set before CUDA starts. Ray gives it to its workers as they start
    (`ray_cluster.worker_environment`); a process of its own has used no CUDA before this.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False


def _nonce() -> str:
    import secrets

    return secrets.token_hex(4)


def zero_shot_curve(
    experiment: Experiment, stream: Stream, data: StreamData, backbone: Clip, store: Store
) -> list[float]:
    """R@1 of the untrained backbone after each task, on the same galleries; kept in the store.

    A trial is compared by its gain over this curve, since R@1 falls as the gallery grows.
    """
    settings = {name: experiment.settings[name] for name in experiment.settings if name.startswith(SEEN_UNTRAINED)}
    zero = resolve({"method": "zero_shot", "stream": experiment.run.stream, **settings})
    frames = frames_digest(stream, data.frames, (experiment.evaluation.split,))
    commits = Commits(store, "zero-" + zero.key(stream, frames))
    num_tasks = len(stream.tasks)
    if commits.finished(num_tasks) < num_tasks:
        config = LoopConfig(zero.optim, zero.evaluation, 0, zero.run.precision)
        method = make_method(zero, backbone).to(data.device)
        data = data.with_features(frozen_features(method, store, zero.run.precision))
        Loop(method, data, config, commits, Workers(device=data.device)).run()
    return [row["stream/t2v/r1"] for row in commits.record(num_tasks).metrics]


def load_model(folder: Path) -> tuple[Method, Settings]:
    """A trained method from a folder that `checkpoint.save_model` wrote (an MLflow artifact `model`).

    Returns the method in evaluation mode and the settings it was trained with.

    Raises:
        FileNotFoundError: if the folder holds no model.
        ValueError: if it does not fit this version.
    """
    from methods.base import Task

    weights, description = read_model(folder)
    settings = description["settings"]
    experiment = resolve(settings)
    clip = load_clip(replace(experiment.backbone, weights="random", sha256=""))  # every tensor is in the folder
    method = make_method(experiment, clip)
    for task in description["tasks"]:
        method.begin_task(Task(**{**task, "categories": tuple(task["categories"])}))
    load_state(method, weights, {})
    return method.eval(), settings
