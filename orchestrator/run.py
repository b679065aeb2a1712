"""One run: settings in, a record out. Everything below the command line and Ray meets here.

`Experiment` is the complete, checked configuration; `execute` trains and evaluates it in this process
(or in each of several processes that share a torch process group).
"""

from __future__ import annotations

import hashlib
import inspect
import logging
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
from orchestrator.data import DataConfig, FrameSource, StreamData
from orchestrator.evaluate import EvaluationConfig
from orchestrator.features import frozen_features
from orchestrator.loop import Loop, LoopConfig, Report, Workers
from orchestrator.optimizer import OptimConfig
from orchestrator.prepare import prepare_stream
from orchestrator.store import Store, digest_file, digest_of
from orchestrator.streams import Stream, load_stream

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which CLIP every method starts from."""

    name: str = "ViT-B-32-quickgelu"  # tiny-clip or an open_clip architecture
    weights: str = "openai"  # shipped (tiny-clip), an open_clip tag, a local file, or random


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
                "stream": stream.digest,
                "frames": frames,
                "backbone": _backbone_digest(self.backbone),
                "files": [_content(value) for value in decisive.values() if isinstance(value, str)],
                "code": code_digest(self.run.method, getattr(self.method, "base", None)),
            }
        )


def frames_digest(stream: Stream, source: FrameSource, splits: Sequence[str]) -> str:
    """sha256 over the content address of every frame that a run can see: other footage is another run."""
    items = (item for index in range(len(stream.tasks)) for split in splits for item in stream.items(index, split))
    return digest_of([source.key(item) for item in items])


def _content(value: str) -> list[str]:
    """Digests of the file or folder that a setting names; empty if it names none."""
    path = Path(value)
    if "/" not in value and not path.suffix:
        return []
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [digest_file(file) for file in files if file.is_file()]


def presets_of(method: str) -> dict[str, dict[str, Any]]:
    """A method's presets; `paper`, the defaults, is always there."""
    method = CONFIGURATIONS.get(method, (method, ""))[0]
    return {"paper": {}, **_find(method).PRESETS}


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
    for preset in presets:
        known = presets_of(name)
        if preset not in known:
            raise ConfigError(
                f"preset: {name} has none called {preset!r}.{suggest(preset, known)} Known: {', '.join(known)}."
            )
        merged.update(known[preset])
    merged.update(overrides)
    _refuse_unknown_groups(merged)
    run = build(RunConfig, {key: value for key, value in merged.items() if "." not in key})
    groups: dict[str, Any] = {group: build(config, under(merged, group), group) for group, config in GROUPS.items()}
    method: Any = build(cls.Config, _with_frames(cls, under(merged, "method"), groups["data"]), "method")
    base: Any = None
    if cls.wraps:
        wrapped = _find(method.base)
        if wrapped.wraps:
            raise ConfigError(
                f"method.base: {method.base} wraps a retriever itself. Name a retriever, such as clip4clip."
            )
        base = build(wrapped.Config, _with_frames(wrapped, under(merged, "base"), groups["data"]), "base")
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


def _with_frames(cls: type[Method], values: Settings, data: DataConfig) -> Settings:
    """A method whose shapes depend on the frames of a video learns their number from the data's setting."""
    if any(f.name == "num_frames" for f in fields(cls.Config)):
        return {"num_frames": data.num_frames, **values}
    return values


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
        return load_backbone(config.name, config.weights)
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


def splits_of(experiment: Experiment, stream: Stream) -> tuple[str, str]:
    """Training and evaluation split; a stream without validation videos refuses `val`."""
    if experiment.evaluation.split == "val" and not stream.has_val:
        raise ConfigError(
            f"evaluation.split: stream {stream.name} has no validation videos. Write evaluation.split=test "
            "(choices are then made on test videos, and tables say so)."
        )
    return "train", experiment.evaluation.split


def execute(
    experiment: Experiment,
    places: Places,
    workers: Workers | None = None,
    report: Report | None = None,
    fresh: bool = False,
    on_ready: Callable[[str, Method, StreamData, Commits], None] | None = None,
) -> Result:
    """Train and evaluate one configuration, from its last finished task on.

    Args:
        experiment: from `resolve`.
        places: where videos and store are.
        workers: this process among those that train together.
        report: called after every task.
        fresh: ignore finished tasks of an earlier run with the same key.
        on_ready: called once before the first task with key, method, data and commits.
    """
    workers = workers or Workers(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
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
    make_data = partial(StreamData, stream, source, backbone.tokenize, backbone.mean, backbone.std)
    data = make_data(experiment.data, workers.device)
    key = experiment.key(stream, frames_digest(stream, source, splits))
    if workers.agree(key) != key:
        raise ConfigError(
            "workers: they see different videos, weights or code. Share --videos and --store, update all."
        )
    commits = Commits(store, key if not fresh else workers.agree(f"{key}-{_nonce()}"))
    zero_shot = workers.agree(zero_shot_curve(experiment, stream, data, backbone, store) if workers.rank == 0 else None)
    method = make_method(experiment, backbone).to(workers.device)
    data = data.with_features(frozen_features(method, store, experiment.run.precision))
    config = LoopConfig(experiment.optim, experiment.evaluation, experiment.run.seed, experiment.run.precision)
    loop = Loop(method, data, config, commits, workers, report, zero_shot)
    if on_ready is not None:
        on_ready(key, method, data, commits)
    resumed = commits.finished(len(stream.tasks))
    return Result(key, loop.run(), method, stream, resumed)


def _make_cuda_repeatable() -> None:
    """Ask CUDA for kernels that give the same numbers twice, in full float32.

    `CUBLAS_WORKSPACE_CONFIG` must be set before CUDA starts; Ray workers get it from `ray_train`.
    """
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
    settings = {name: value for name, value in experiment.settings.items() if name.startswith(SEEN_UNTRAINED)}
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
    clip = load_clip(replace(experiment.backbone, weights="random"))  # every tensor is in the folder
    method = make_method(experiment, clip)
    for task in description["tasks"]:
        method.begin_task(Task(**{**task, "categories": tuple(task["categories"])}))
    load_state(method, weights, {})
    return method.eval(), settings
