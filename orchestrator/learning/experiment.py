"""A complete, checked configuration of one run, and the key of all that decides its result.

Settings come from the command line, presets and streams as flat `group.name` words; `resolve` fills in the rest.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import methods
from methods import CONFIGURATIONS, find_method
from methods import base as methods_base
from methods.backbone.clip import TINY, TINY_FOLDER
from methods.base import Method
from orchestrator.config import Settings, build, flatten, suggest, under
from orchestrator.data.batches import DataConfig
from orchestrator.data.frames import FrameSource
from orchestrator.digests import digest_file, digest_of
from orchestrator.errors import ConfigError
from orchestrator.learning.evaluate import EvaluationConfig
from orchestrator.learning.optimizer import OptimConfig
from orchestrator.learning.reuse import Prefixes, Reads, WatchedSettings, watched
from orchestrator.store.store import Store
from orchestrator.streams.load import Stream


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


_SHARED = ("methods/backbone", "methods/families", "methods/layers")


def code_digest(method: str, base: str | None = None) -> str:
    """sha256 over the source of everything that computes a result: the method, its layers, the loop."""
    root = Path(inspect.getfile(methods)).parent.parent
    files = {Path(inspect.getfile(methods_base))}
    for room in ("orchestrator/learning", "orchestrator/data", "orchestrator/video", *_SHARED):
        files |= set((root / room).rglob("*.py"))
    for name in filter(None, (method, base)):
        files |= {Path(inspect.getfile(c)) for c in find_method(name).__mro__ if c.__module__.startswith("methods.")}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _backbone_digest(config: BackboneConfig) -> str:
    shipped = [digest_file(file) for file in sorted(TINY_FOLDER.iterdir()) if config.name == TINY and file.is_file()]
    file = Path(config.weights)
    return digest_of([shipped, digest_file(file) if file.is_file() else config.weights])
