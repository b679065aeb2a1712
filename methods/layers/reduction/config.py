"""Settings of token reduction: one dataclass for each reducer, selected by `reducer.name`.

A method declares the group by `group(REDUCERS, ...)` of methods/settings.py, or `group(TRAINED_REDUCERS, ...)` if it
calls `TokenReducer.after_step` and trains the rates of a search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ctvr.methods.settings import SettingError, require, setting

ReducerName = Literal["none", "tome", "tome_shared", "tempme", "evit", "sta", "diffrate", "testa"]


@dataclass(frozen=True, kw_only=True)
class ReducerConfig:
    """No token reduction; the base of the others. None and () are filled in from the backbone and the frames."""

    joins_frames: ClassVar[bool] = False  # needs all frames of a video

    name: ReducerName = "none"

    @property
    def required_num_frames(self) -> int | None:
        """Return the only number of frames that the schedule fits; None if it fits any."""
        return None


@dataclass(frozen=True, kw_only=True)
class ToMeConfig(ReducerConfig):
    """ToMe, with a plan for each frame or, as `tome_shared`, one for all frames of a video."""

    name: Literal["tome", "tome_shared"] = "tome"
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="tokens merged in each frame and block; several: one for each of the first blocks, others merge none; "
        "none: the paper's 2 of 49 or 10 of 196 patches",
    )
    inflection: float = setting(0.0, doc="slope of the schedule: from 2 r to 0 (-1), constant (0) or from 0 to 2 r (1)")
    proportional: bool = setting(True, doc="attention in proportion to the number of patches in a token")

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "merge nothing within frames")
        require(self, "in [-1, 1]", "inflection", hint="Use 0 for one r in every block.")
        if isinstance(self.r, tuple) and self.inflection:
            raise SettingError(f"<r>={','.join(map(str, self.r))}: with inflection, r is one number")


@dataclass(frozen=True, kw_only=True)
class TempMeReducerConfig(ReducerConfig):
    """TempMe: merging within frames, then across clips that grow to the whole video."""

    joins_frames = True

    name: Literal["tempme"] = "tempme"
    r: int | None = setting(
        None, doc="tokens merged in each frame and block; none: the paper's 2 of 49 or 10 of 196 patches"
    )
    proportional: bool = setting(True, doc="attention in proportion to the number of patches in a token")
    num_frames: int = setting(12, doc="T; must equal data.num_frames")
    keep_cross: int | None = setting(
        None, doc="R_C in percent; none: 70 up to 64 patches a frame (B/32), else 60 (B/16)"
    )
    keep_intra: int | None = setting(None, doc="R_I in percent; none: 90 up to 64 patches a frame, else 80")
    clip_blocks: tuple[int, ...] = setting(
        (), doc="blocks that join clips, from 0 (the paper counts from 1); (): 8, 9, 10 of 12 blocks"
    )
    clip_groups: tuple[int, ...] = setting(
        (), doc="clips joined in each of these blocks; (): 2, 2, 3 for 12 frames, 4, 4, 4 for 64"
    )
    join_clips: bool = setting(
        True, doc='joined clips; false: the same rates within single frames ("token reduction only", table 9)'
    )
    positions: Literal["always", "merging", "none"] = setting(
        "always", doc="blocks with clip positions; merging: as in the released code"
    )

    @property
    def required_num_frames(self) -> int | None:
        return self.num_frames

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "merge nothing within frames")
        require(self, ">= 1", "num_frames")
        require(self, "in (0, 100]", "keep_cross", "keep_intra", hint="Write 100 to merge nothing.")
        _check_rising("clip_blocks", self.clip_blocks)
        if self.clip_groups and (min(self.clip_groups) < 2 or self.num_frames % math.prod(self.clip_groups)):
            raise SettingError(
                f"<clip_groups>={self.clip_groups} must be numbers above 1 whose product divides "
                f"<num_frames>={self.num_frames}"
            )


@dataclass(frozen=True, kw_only=True)
class EViTConfig(ReducerConfig):
    """EViT: the class token keeps the patches that it attends to most."""

    name: Literal["evit"] = "evit"
    stages: tuple[int, ...] = setting((), doc="blocks in which it acts, from 0; (): 3, 6, 9 of 12")
    keep_rate: float = setting(0.7, doc="share of the patches kept in each of the stages")
    fuse: bool = setting(True, doc="fusion of the removed patches into one token")

    def __post_init__(self) -> None:
        _check_rising("stages", self.stages)
        require(self, "in (0, 1]", "keep_rate", hint="Write <keep_rate>=1 to keep all.")


@dataclass(frozen=True, kw_only=True)
class AnnealedEViTConfig(EViTConfig):
    """EViT whose rate may fall during training."""

    anneal_from: int = setting(0, doc="optimizer steps before patches are removed in training")
    anneal_steps: int = setting(0, doc="further steps in which the rate falls from 1; 0: the full rate at once")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "anneal_from", "anneal_steps")


@dataclass(frozen=True, kw_only=True)
class STAConfig(ReducerConfig):
    """STA: patches of a video that resemble their neighbours in space and time are removed."""

    name: Literal["sta"] = "sta"
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="patches removed from each frame in each stage; none: 10, 9, 9 of 49, which cost as much as TempMe's "
        "table 2 prints (without r)",
    )
    stages: tuple[int, ...] = setting((), doc="blocks after which it acts, from 0; (): 0, 4, 8 of 12")

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "remove nothing")
        _check_rising("stages", self.stages)


@dataclass(frozen=True, kw_only=True)
class DiffRateConfig(ReducerConfig):
    """DiffRate: a schedule of pruned and merged patches for every block."""

    name: Literal["diffrate"] = "diffrate"
    prune_to: tuple[int, ...] = setting(
        (), doc="K_p of every block, including the class token; (): the released MAE-B 11.5 for a B/16, else ours"
    )
    merge_to: tuple[int, ...] = setting((), doc="K_m of every block, as prune_to")
    proportional: bool = setting(True, doc="attention in proportion to the number of patches in a token")

    def __post_init__(self) -> None:
        if len(self.prune_to) != len(self.merge_to) or min((*self.prune_to, *self.merge_to), default=2) < 2:
            raise SettingError(
                f"<prune_to>={self.prune_to} and <merge_to>={self.merge_to} must be equally many numbers >= 2"
            )


@dataclass(frozen=True, kw_only=True)
class SearchedDiffRateConfig(DiffRateConfig):
    """DiffRate whose schedule may be searched in the first task."""

    search_macs: float | None = setting(
        None, doc="target of a search of rates, in 10^9 multiply-adds a frame; it trains rates only, in the first task"
    )
    search_step: int = setting(4, doc="patches between two candidates of the search", exact=True)
    lr_rates: float = setting(0.01, doc="learning rate of the search, DiffRate's")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "search_step")
        require(self, "> 0", "search_macs")
        if self.search_macs is not None and self.prune_to:
            raise SettingError("<search_macs> finds <prune_to> and <merge_to>; omit it or them")
        require(self, ">= 0", "lr_rates")
        if self.search_macs is None and self.lr_rates != SearchedDiffRateConfig.lr_rates:
            raise SettingError("<lr_rates> is the rate of a search; write <search_macs> too, or leave it out")


@dataclass(frozen=True, kw_only=True)
class TESTAConfig(ReducerConfig):
    """TESTA: merging of frames and of patches, around a temporal attention."""

    joins_frames = True

    name: Literal["testa"] = "testa"
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="tokens merged in each frame and block; several: one for each of the first blocks, others merge none; "
        "none: 2 of 49 or 10 of 196 patches",
    )
    stages: tuple[int, ...] = setting((), doc="blocks with temporal attention, from 0; (): 8 to 11 of 12")
    r_frames: int | tuple[int, ...] | None = setting(
        None,
        doc="frames merged in each of the stages; none: numbers that cost as much as TempMe's table 2 prints "
        "(without them)",
    )
    temporal_rank: int = setting(8, doc="rank of LoRA on the temporal attention")
    temporal_gate: Literal["scalar", "linear"] = setting(
        "scalar", doc="gate of the temporal attention; linear: the release's layer, also 0 at first", exact=True
    )
    one_class: bool = setting(False, doc="equal class tokens in all frames of a video, as in the release", exact=True)

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "merge nothing within frames")
        _check_counts("r_frames", self.r_frames, "keep all frames")
        _check_rising("stages", self.stages)
        require(self, ">= 1", "temporal_rank")


REDUCERS: dict[str, type[ReducerConfig]] = {
    "none": ReducerConfig,
    "tome": ToMeConfig,
    "tome_shared": ToMeConfig,
    "tempme": TempMeReducerConfig,
    "evit": EViTConfig,
    "sta": STAConfig,
    "diffrate": DiffRateConfig,
    "testa": TESTAConfig,
}
TRAINED_REDUCERS = {**REDUCERS, "evit": AnnealedEViTConfig, "diffrate": SearchedDiffRateConfig}


def _check_counts(name: str, counts: int | tuple[int, ...] | None, effect: str) -> None:
    numbers = counts if isinstance(counts, tuple) else () if counts is None else (counts,)
    if any(number < 0 for number in numbers):
        raise SettingError(f"<{name}> must be >= 0, got {counts}", f"Write <{name}>=0 to {effect}.")


def _check_rising(name: str, blocks: tuple[int, ...]) -> None:
    if blocks and list(blocks) != sorted(set(blocks)):
        raise SettingError(f"<{name}> must rise, got {blocks}")
