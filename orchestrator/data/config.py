"""The settings `data.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.settings import SettingError, require, setting


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings of frames, captions and batches. Defaults: CTVR (arXiv:2503.10111), section 5.1, MSRVTT."""

    num_frames: int = setting(12, doc="number of frames of a video")
    sampling: Literal["segments", "linspace", "one_per_second", "random"] = setting(
        "segments",
        doc="choice of frames. segments: the middle frame of each of equal parts (CTVR, X-Pool); linspace: evenly "
        "spaced from the first to the last frame (CLIP-ViP); one_per_second: one frame per second, and missing "
        "frames are masked (CLIP4Clip); random: in training a random frame of each part for every video and "
        "epoch, otherwise the middle frames",
    )
    jpeg_quality: int | None = setting(
        None, doc="JPEG quality of stored frames, 1 to 100 (small changes of pixels); none: raw frames, without changes"
    )
    image_size: int | None = setting(None, doc="side of a frame in pixels; none: the backbone's input size")
    batch_size: int = setting(8, doc="number of video-caption pairs in one step, over all workers")
    augment: Literal["none", "crop_flip", "gray_jitter"] = setting(
        "none",
        doc="augmentation of training frames; flips exchange left and right, which captions mention, so the default "
        "is none",
    )
    caption_sampling: Literal["all", "random_per_video"] = setting(
        "all",
        doc="captions of an epoch. all: every caption of a video; random_per_video: one random caption of each video",
    )
    max_tokens: int | None = setting(
        None,
        doc="maximum number of tokens of a caption, including start and end tokens; none: the backbone's text length",
    )
    unique_videos: bool = setting(False, doc="whether to keep two captions of one video out of the same batch")
    prefetch_threads: int | None = setting(
        None, doc="number of background threads that read batches; none: 2 for a GPU, 0 for a CPU"
    )
    decoder: Literal["auto", "decord", "pyav", "torchcodec"] = setting(
        "pyav",
        doc="video decoder. With decord and torchcodec each clip is decoded twice, because PyAV checks the frames. "
        "auto: decord, or PyAV if decord fails",
    )
    cache_features: bool = setting(
        True, doc="whether to store the outputs of the first vision blocks if these are frozen"
    )
    center: bool = setting(
        False,
        doc="whether to subtract the mean over the first task's training pairs from imported features of videos and "
        "captions; useful for vectors with a large common component",
    )
    skip_missing: bool = setting(
        False, doc="whether to continue without missing or broken videos; a smaller gallery changes the metrics"
    )

    @property
    def rule(self) -> Literal["segments", "linspace", "one_per_second"]:
        """Return the value of `sampling` for videos outside training, whose frames are not chosen at random."""
        return "segments" if self.sampling == "random" else self.sampling

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_frames", "image_size", "batch_size")
        require(self, ">= 2", "max_tokens")
        if self.jpeg_quality is not None and not 1 <= self.jpeg_quality <= 100:
            raise SettingError(
                f"<jpeg_quality> must be 1 to 100, got {self.jpeg_quality}", "Use 90, or none for raw frames."
            )
        require(self, ">= 0", "prefetch_threads", hint="Use 0 to read without threads.")
