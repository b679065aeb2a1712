"""The settings `data.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.settings import SettingError, require, setting


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings of frames, captions and batches. Defaults: CTVR (arXiv:2503.10111), section 5.1, MSRVTT."""

    num_frames: int = setting(12, doc="frames of a video")
    sampling: Literal["segments", "linspace", "one_per_second", "random"] = setting(
        "segments",
        doc="choice of frames. segments: the middles of equal parts (CTVR, X-Pool); linspace: from the first "
        "to the last (CLIP-ViP); one_per_second: missing frames are masked (CLIP4Clip); random: in "
        "training one of each part, drawn for every video and epoch, elsewhere the middles",
    )
    jpeg_quality: int | None = setting(
        None, doc="quality of stored frames, 1 to 100 (JPEG, a small loss); none: raw frames, without loss"
    )
    image_size: int | None = setting(None, doc="side of a frame in pixels; none: the backbone's input size")
    batch_size: int = setting(8, doc="pairs in one step, over all workers")
    augment: Literal["none", "crop_flip", "gray_jitter"] = setting(
        "none", doc='augmentation of training frames; flips swap "left" and "right", so they are off by default'
    )
    caption_sampling: Literal["all", "random_per_video"] = setting(
        "all", doc="every caption, or one per video and epoch"
    )
    max_tokens: int | None = setting(
        None, doc="tokens of a caption, including its two ends; none: the backbone's text length"
    )
    unique_videos: bool = setting(False, doc="batches without two captions of one video")
    prefetch_threads: int | None = setting(
        None, doc="background threads that read the store; 0: read in line; none: 2 for a GPU, else 0"
    )
    decoder: Literal["auto", "decord", "pyav", "torchcodec"] = setting(
        "pyav",
        doc="video decoder. decord and torchcodec decode a clip twice, since PyAV checks the frames; auto: "
        "decord, or PyAV where decord fails",
    )
    cache_features: bool = setting(True, doc="cache of the outputs of frozen leading vision blocks")
    center: bool = setting(
        False,
        doc="whether to subtract from imported video and caption features their mean over the first task's training "
        "pairs; for vectors with a large common part",
    )
    skip_missing: bool = setting(
        False, doc="continue without missing or broken videos; the gallery shrinks, so numbers change"
    )

    @property
    def rule(self) -> Literal["segments", "linspace", "one_per_second"]:
        """Return the rule that selects frames of videos outside training."""
        return "segments" if self.sampling == "random" else self.sampling

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_frames", "image_size", "batch_size")
        require(self, ">= 2", "max_tokens")
        if self.jpeg_quality is not None and not 1 <= self.jpeg_quality <= 100:
            raise SettingError(
                f"<jpeg_quality> must be 1 to 100, got {self.jpeg_quality}", "Use 90, or none for raw frames."
            )
        require(self, ">= 0", "prefetch_threads", hint="Use 0 to read in line.")
