"""Complete, checked configuration of one run, as `resolve` (resolve.py) builds it from a user's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ctvr.methods import CONFIGURATIONS, find_method
from ctvr.methods.capabilities import Capabilities, capabilities_of
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import Precision
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.learning.evaluate import EvaluationConfig
from ctvr.orchestrator.learning.optimizer import OptimConfig
from ctvr.orchestrator.learning.prefix_reuse import AccessLog, Prefixes, TrackedSettings, track_reads
from ctvr.orchestrator.learning.run_key import (
    ADDS,
    NON_IDENTITY_SETTINGS,
    code_digests,
    contents_of,
    environment,
    weights_digest,
)
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Stream


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which CLIP every method starts from, or which network for images."""

    # tiny-clip, UMT-B-16, UMT-L-16 or an open_clip architecture; for images resnet18 or resnet18-8 (narrow)
    name: str = "ViT-B-32-quickgelu"
    weights: str = "openai"  # shipped (tiny-clip), an open_clip tag, a local file, or random
    sha256: str = ""  # of a local file that is a pickle (.pt): it is read only if it is the one you mean
    vocabulary: str = ""  # UMT alone: BERT's vocab.txt, by whose pieces it reads captions


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings without a prefix."""

    method: str
    stream: str
    seed: int = 0
    precision: Precision = "fp32"
    deterministic: bool = True  # on a GPU only by kernels that give the same numbers twice; false is another key
    workers: int = 1  # processes that train one model together
    threads: int = 1  # of torch on a CPU

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}. Use 1.")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must be a number of 64 bits, got {self.seed}. Use a small one.")


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """What is shown besides MLflow, which stays the record, and what is kept. No result depends on it."""

    mirror: Literal["none", "tensorboard", "wandb", "trackio"] = "none"  # offline, below the runs folder
    keep_checkpoints: bool = False  # in the store: the weights after every task (else the last two); takes over no task


GROUPS: dict[str, type] = {
    "backbone": BackboneConfig,
    "data": DataConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
    "tracking": TrackingConfig,
}


@dataclass(frozen=True)
class Experiment:
    """Complete configuration. `settings` holds every value, flat and dotted, defaults included."""

    run: RunConfig
    backbone: BackboneConfig
    data: DataConfig
    optim: OptimConfig
    evaluation: EvaluationConfig
    tracking: TrackingConfig
    method: Any  # an instance of the method's Config
    base: Any | None  # of the wrapped retriever's Config, for a strategy
    settings: Settings = field(default_factory=dict)
    presets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the table row: the method, or its configuration that has its own name."""
        for name, (method, preset) in CONFIGURATIONS.items():
            if method == self.run.method and preset in self.presets:
                return name
        return self.run.method

    @property
    def capabilities(self) -> Capabilities:
        """Return facts about the method under these settings, with those of the retriever that it wraps."""
        base = None if self.base is None else capabilities_of(find_method(self.method.base), self.base)
        return capabilities_of(find_method(self.run.method), self.method, base)

    @property
    def trains_on_searched(self) -> bool:
        """True if training reads the features of the searched videos, which in tables are the test videos."""
        if not self.optim.epochs:
            return False
        of_base = self.base is not None and find_method(self.method.base).trains_on_searched(self.base)
        return find_method(self.run.method).trains_on_searched(self.method, of_base)

    def key(self, stream: Stream, frames: str = "", device: str = "cpu") -> str:
        """Return the digest of everything that decides the result (run_key.py).

        Args:
            stream: as used, without the videos that were left out.
            frames: `frames_digest` of the stream; empty for a plan whose videos are not read yet.
            device: kind of device that computes, `cpu` or `cuda`.
        """
        settings = self.settings.items()
        decisive = {k: v for k, v in settings if k not in NON_IDENTITY_SETTINGS and not (k in ADDS and ADDS[k] == v)}
        return digest_of(
            {"settings": decisive, "contents": self.file_digests(), **self.environment_digests(stream, frames, device)}
        )

    def file_digests(self) -> dict[str, str]:
        """Return setting -> digest of the file or folder that it names."""
        return contents_of(self.method, "method") | ({} if self.base is None else contents_of(self.base, "base"))

    def environment_digests(self, stream: Stream, frames: str = "", device: str = "cpu") -> dict[str, str]:
        """Return the digests that decide a result besides the settings, by name. Arguments as in `key`."""
        return {
            "stream": stream.digest,
            "frames": frames,
            "weights": weights_digest(self.backbone.name, self.backbone.weights, self.backbone.vocabulary),
            **code_digests(self.run.method, getattr(self.method, "base", None)),
            **environment(device),
        }

    def prefixes(self, store: Store, stream: Stream, frames: str, device: str) -> Prefixes:
        """Return the finished tasks that this run may share with others in the same environment."""
        return Prefixes(
            store, digest_of(self.environment_digests(stream, frames, device)), self.settings, self.file_digests()
        )

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
