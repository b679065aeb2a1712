"""The settings `data.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How pairs are made of a stream. Defaults: CTVR (arXiv:2503.10111), section 5.1, MSRVTT."""

    num_frames: int = 12
    # Which frames: the middles of equal parts (CTVR, X-Pool), from the first to the last (CLIP-ViP), one a second and
    # missing ones masked (CLIP4Clip); see orchestrator/video/sampling.py. random: in training one of each part, drawn
    # for every video and epoch, and the middles elsewhere (frames.py)
    sampling: Literal["segments", "linspace", "one_per_second", "random"] = "segments"
    image_size: int | None = None  # pixels of a side; none: what the backbone sees
    batch_size: int = 8  # pairs of one step, over all workers
    augment: Literal["none", "crop_flip", "gray_jitter"] = "none"  # flips mirror "left" and "right": off by default
    caption_sampling: Literal["all", "random_per_video"] = "all"  # every caption, or one per video and epoch
    max_tokens: int | None = None  # of a caption, its two ends included; none: as many as the backbone reads
    unique_videos: bool = False  # no batch holds two captions of one video
    prefetch_threads: int | None = None  # background threads that read the store; 0: in line; none: 2 for a GPU, else 0
    # decord and torchcodec decode a clip twice (PyAV checks the frames); auto: decord, and PyAV where decord cannot
    decoder: Literal["auto", "decord", "pyav", "torchcodec"] = "pyav"
    cache_features: bool = True  # keep what frozen leading vision blocks make of a video (frozen_features.py)
    skip_missing: bool = False  # go on without videos that are absent or broken (numbers change: the gallery shrinks)

    @property
    def rule(self) -> Literal["segments", "linspace", "one_per_second"]:
        """The frames of a video that is not trained on."""
        return "segments" if self.sampling == "random" else self.sampling

    def __post_init__(self) -> None:
        for name in ("num_frames", "image_size", "batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.max_tokens is not None and self.max_tokens < 2:
            raise ValueError(f"max_tokens counts a caption's two ends and must be >= 2, got {self.max_tokens}.")
        if self.prefetch_threads is not None and self.prefetch_threads < 0:
            raise ValueError(f"prefetch_threads must be >= 0, got {self.prefetch_threads}. Use 0 to read in line.")
