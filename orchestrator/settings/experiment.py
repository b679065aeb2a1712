"""Complete, checked configuration of one run, as `resolve` (resolve.py) builds it from a user's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ctvr.methods import CONFIGURATIONS, find_method
from ctvr.methods.backbone.architectures import IMPORTED, VECTORS
from ctvr.methods.base import Method
from ctvr.methods.capabilities import Capabilities, capabilities_of
from ctvr.methods.settings import SettingError, require, setting
from ctvr.orchestrator.config import Settings, flatten
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import Precision
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.keys.prefix_reuse import AccessLog, Prefixes, TrackedSettings, track_reads
from ctvr.orchestrator.keys.run_key import (
    NON_IDENTITY_SETTINGS,
    backbone_digest,
    code_digests,
    contents_of,
    describe_preprocessing,
    environment,
    protocol_digest,
    stream_digest,
    weights_digest,
)
from ctvr.orchestrator.settings.evaluation_config import METRICS, EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OPTIMIZERS, OptimConfig
from ctvr.orchestrator.settings.tracking_config import MIRRORS, TrackingConfig
from ctvr.orchestrator.streams.metric_names import ADDS_METRICS
from ctvr.orchestrator.streams.stream import Stream

if TYPE_CHECKING:
    from ctvr.orchestrator.store.store import Store

_ONLY_IF = "needed only if neither the JSON file next to the weights nor a tag of the architecture determines it"


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Settings of the pre-trained CLIP, or of the network for images."""

    name: str = setting(
        "ViT-B-32-quickgelu",
        doc="backbone: tiny-clip, tiny-clip-stem, UMT-B-16, UMT-L-16, the name of an open_clip architecture, the "
        "path of an architecture (FILE.json or a folder) or a name from an entry point ctvr.backbones. For "
        "images: resnet18 or resnet18-8 (narrow). For imported features: vectors",
    )
    weights: str = setting(
        "openai",
        doc="weights of the backbone: shipped (those of tiny-clip, tiny-clip-stem, the folder of an architecture or "
        "an entry point), an open_clip tag, a local file, random, or imported (only with name=vectors)",
    )
    sha256: str = setting(
        "", doc="SHA-256 digest of a local pickle file (.pt), which is read only if the digest matches"
    )
    vocabulary: str = setting("", doc="path of BERT's vocab.txt, for the captions of UMT (only UMT needs it)")
    activation: Literal["", "gelu", "quick_gelu"] = setting("", doc=f"activation of a local weights file, {_ONLY_IF}")
    mean: tuple[float, ...] = setting((), doc=f"pixel mean of a local weights file, {_ONLY_IF}; std follows from it")
    resize_mode: Literal["", "shortest", "squash", "longest"] = setting(
        "", doc=f"resize mode of a local weights file, {_ONLY_IF}"
    )

    @property
    def chosen(self) -> dict[str, Any]:
        """Return the settings of a local weights file that the user gave (`methods.backbone.weight_settings`)."""
        return {name: value for name in ("activation", "mean", "resize_mode") if (value := getattr(self, name))}


@dataclass(frozen=True, kw_only=True)
class UpgradeConfig:
    """Replacement of the backbone within a stream, without re-encoding the index (learning/run/upgrade.py)."""

    task: int = setting(
        0, doc="number, from 1, of the first task that the new backbone learns, 2 or more; 0: no upgrade"
    )
    backbone: str = setting("", doc="name of the new backbone; values as for backbone.name")
    stream: str = setting(
        "",
        doc="name of a stream of the same videos and captions with features of the new embedder, instead of a new "
        "backbone",
    )
    weights: str = setting("shipped", doc="weights of the new backbone; values as for backbone.weights")
    sha256: str = setting("", doc="backbone.sha256 of the new backbone")
    activation: Literal["", "gelu", "quick_gelu"] = setting("", doc="backbone.activation of the new backbone")
    mean: tuple[float, ...] = setting((), doc="backbone.mean of the new backbone")
    resize_mode: Literal["", "shortest", "squash", "longest"] = setting(
        "", doc="backbone.resize_mode of the new backbone"
    )
    queries: Literal["both", "map", "new"] = setting(
        "both",
        doc="encoding of the captions that search the old videos. both: by the old model, so each caption needs two "
        "text passes; map: by the new model, then mapped to the old space; new: by the new model, unchanged "
        "(equal widths only)",
    )
    map: Literal["procrustes", "linear"] = setting(
        "procrustes",
        doc="map of captions to the old space, which is fitted again after each task. procrustes: the orthogonal map "
        "of Drift-Adapter; linear: the map of XBT, in closed form",
    )

    def __post_init__(self) -> None:
        if self.task < 0 or self.task == 1:
            raise SettingError(f"<task> must be 2 or more, got {self.task}", "Use 0 for no upgrade.")
        if self.task and not (self.backbone or self.stream):
            raise SettingError(
                f"<task> {self.task} needs the new backbone", "Add <backbone>=NAME, or <stream>=NAME for features."
            )
        if self.backbone == VECTORS:
            raise SettingError(f"<backbone> {VECTORS} has no weights", "Use <stream>=NAME, a stream with the features.")
        if self.backbone and self.stream:
            raise SettingError(f"<backbone> {self.backbone} is not used with <stream>={self.stream}", "Omit one.")
        for name in ("backbone", "stream"):
            if (given := getattr(self, name)) and not self.task:
                raise SettingError(f"<{name}> {given} is not used", "Add <task>=N, the first task with the new model.")

    @property
    def tower(self) -> BackboneConfig:
        """Return the settings of the new backbone, or of towers over the features of the new embedder."""
        if self.stream:
            return BackboneConfig(name=VECTORS, weights=IMPORTED)
        same = ("weights", "sha256", "activation", "mean", "resize_mode")
        return BackboneConfig(name=self.backbone, **{name: getattr(self, name) for name in same})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Top-level settings of a run, which have no prefix."""

    method: str = setting(doc="method: a name that `ctvr methods` lists, or `module:Class`")
    stream: str = setting(doc="stream: a name that `ctvr streams` lists, or the path of a manifest")
    seed: int = setting(0, doc="seed of all random numbers")
    precision: Precision = setting(
        "fp32",
        doc="number format of the forward pass; weights and optimizer state are always float32; tf32 has an effect "
        "on GPUs only",
    )
    deterministic: bool = setting(
        True, doc="whether to use only deterministic GPU kernels; false gives a run another key"
    )
    compile: bool = setting(
        False,
        doc="whether to apply torch.compile to the tower blocks that the method does not change; results then differ "
        "by rounding",
    )
    workers: int = setting(1, doc="number of processes that train one model together")
    threads: int = setting(1, doc="number of torch threads of a process on a CPU")

    def __post_init__(self) -> None:
        require(self, ">= 1", "workers", "threads", hint="Use 1.")
        if not 0 <= self.seed < 2**32:
            raise SettingError(
                f"<seed> must be a whole number from 0 to {2**32 - 1}, got {self.seed}", write="<seed>=1"
            )


GROUPS: dict[str, type] = {
    "backbone": BackboneConfig,
    "data": DataConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
    "tracking": TrackingConfig,
    "upgrade": UpgradeConfig,
}


@dataclass(frozen=True)
class Experiment:
    """Complete configuration of a run.

    Attributes:
        settings: every value, flat and dotted, defaults included.
        layers: source ("the method", "the stream", "imported features", "preset NAMES", "you") -> the settings that it
            gives; later sources override earlier ones.
    """

    run: RunConfig
    backbone: BackboneConfig
    data: DataConfig
    optim: OptimConfig
    evaluation: EvaluationConfig
    tracking: TrackingConfig
    upgrade: UpgradeConfig
    method: Any  # instance of the method's Config
    base: Any | None  # instance of the wrapped retriever's Config; None if the method is a retriever
    settings: Settings = field(default_factory=dict)
    presets: tuple[str, ...] = ()
    layers: dict[str, Settings] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """Return the name in tables: the named configuration that method and presets form, otherwise the method."""
        for name, (method, preset) in CONFIGURATIONS.items():
            if method == self.run.method and preset in self.presets:
                return name
        return self.run.method

    @property
    def sources(self) -> dict[str, str]:
        """Map each setting that a source sets to the name of the source; settings with default values are omitted."""
        return {name: source for source, settings in self.layers.items() for name in settings}

    @property
    def default_settings(self) -> Settings:
        """Return the method's complete settings, without values from the user, the stream or the presets."""
        configs = {**GROUPS, "method": find_method(self.run.method).Config}
        if self.base is not None:
            configs["base"] = find_method(self.method.base).Config
        made = flatten(RunConfig(method=self.run.method, stream=self.run.stream))
        for group, config in configs.items():
            made |= flatten(config(), group)
        frames = {name: made["data.num_frames"] for name in made if name.endswith(".num_frames")}
        return made | frames | self.layers.get("the method", {})

    def recommended_value(self, name: str) -> Any:
        """Return the value that the stream or a preset recommends for a setting, otherwise the default."""
        given = [settings[name] for source, settings in self.layers.items() if source != "you" and name in settings]
        return given[-1] if given else self.default_settings[name]

    @property
    def capabilities(self) -> Capabilities:
        """Return the method's capabilities under these settings, combined with the wrapped retriever's capabilities."""
        base = None if self.base is None else capabilities_of(find_method(self.method.base), self.base)
        return capabilities_of(find_method(self.run.method), self.method, base)

    @property
    def trains_by_gradients(self) -> bool:
        """Return whether an optimizer trains any parameters."""
        return self.optim.epochs > 0 and find_method(self.run.method).param_groups is not Method.param_groups

    @property
    def trains_on_searched(self) -> bool:
        """Return whether training reads features of the searched videos (in tables, the test videos)."""
        return self._has("trains_on_searched")

    @property
    def keeps_videos(self) -> bool:
        """Return whether a later task trains on videos of earlier tasks."""
        return self._has("keeps_videos")

    @property
    def is_joint(self) -> bool:
        """Return whether each task is trained on the pairs of all tasks so far."""
        return bool(self.optim.epochs) and self.capabilities.trains_on == "seen"

    def _has(self, fact: str) -> bool:
        """Return the result of the method's class method `fact`, given its result for the wrapped retriever.

        If the run does not train, the result is False.
        """
        if not self.optim.epochs:
            return False
        of_base = self.base is not None and getattr(find_method(self.method.base), fact)(self.base)
        return bool(getattr(find_method(self.run.method), fact)(self.method, of_base))

    def check_plugins(self) -> None:
        """Check the metrics, the optimizer and the mirror that the settings name.

        Raises:
            ConfigError: if one of them is unknown or cannot be loaded.
        """
        for plugins, names in (
            (METRICS, self.evaluation.metrics),
            (OPTIMIZERS, [self.optim.name]),
            (MIRRORS, [self.tracking.mirror]),
        ):
            for name in names:
                plugins.check(name)

    def key(self, stream: Stream, frames: str = "", device: str = "cpu") -> str:
        """Return the digest of everything that determines the result (run_key.py).

        Args:
            stream: the stream in use, without skipped videos.
            frames: `frames_digest` of the stream; empty for a plan whose videos are not read yet.
            device: kind of device that computes, `cpu` or `cuda`.
        """
        return self.key_in(self.environment_digests(stream, frames, device))

    def key_in(self, environment: dict[str, str]) -> str:
        """Return the run key for given environment digests (see `environment_digests`)."""
        settings = self.settings.items()
        decisive = {
            k: v
            for k, v in settings
            if k not in NON_IDENTITY_SETTINGS and not (k in ADDS_METRICS and ADDS_METRICS[k] == v)
        }
        return digest_of({"settings": decisive, "contents": self.file_digests(), **environment})

    def file_digests(self) -> dict[str, str]:
        """Map each setting that names a file or folder to the digest of the contents.

        With an upgrade, the new backbone's weights and preprocessing settings are included.
        """
        new = self.upgrade.tower
        return {
            **contents_of(self.method, "method"),
            **({} if self.base is None else contents_of(self.base, "base")),
            **({"upgrade.backbone": weights_digest(new.name, new.weights)} if self.upgrade.task else {}),
            **(backbone_digest(new.name) if self.upgrade.task else {}),
            **(describe_preprocessing(new.name, new.weights, new.chosen, "upgrade.") if self.upgrade.task else {}),
        }

    def environment_digests(self, stream: Stream, frames: str = "", device: str = "cpu") -> dict[str, str]:
        """Return, by name, the digests that a run key contains in addition to the settings. See `key` for arguments."""
        return {
            "stream": stream.digest,
            "frames": frames,
            "weights": weights_digest(self.backbone.name, self.backbone.weights, self.backbone.vocabulary),
            **describe_preprocessing(self.backbone.name, self.backbone.weights, self.backbone.chosen),
            **code_digests(self.run.method, getattr(self.method, "base", None)),
            **protocol_digest(stream.protocol),
            **stream_digest(self.run.stream),
            **METRICS.digests(self.evaluation.metrics),
            **OPTIMIZERS.digests([self.optim.name]),
            **backbone_digest(self.backbone.name),
            **environment(device),
        }

    def prefixes(self, store: Store, environment: dict[str, str], upgrade: str = "") -> Prefixes:
        """Return the finished tasks that this run may share with other runs in an equal environment.

        Args:
            store: store that holds the tasks.
            environment: `environment_digests`, in which `frames` covers only the tasks before an upgrade.
            upgrade: digest of the frames or features that the new model reads, if the old model does not read them.
        """
        contents = self.file_digests()
        if upgrade:
            contents["upgrade.backbone"] = digest_of([contents["upgrade.backbone"], upgrade])
        return Prefixes(store, digest_of(environment), self.settings, contents)

    def track_reads(self, reads: AccessLog) -> Experiment:
        """Return an equal experiment that records in `reads` every setting that is read."""
        groups = {group: track_reads(getattr(self, group), group, reads) for group in GROUPS}
        return Experiment(
            track_reads(self.run, "", reads),
            **groups,
            method=track_reads(self.method, "method", reads),
            base=None if self.base is None else track_reads(self.base, "base", reads),
            settings=TrackedSettings(self.settings, reads),  # type: ignore[arg-type]
            presets=self.presets,
        )
