"""Settings of token reduction: one dataclass for each reducer, selected by `reducer.name`.

A method declares the group with `group(REDUCERS, ...)` (methods/settings.py). A method that calls
`TokenReducer.after_step` and trains the rates of a search declares `group(TRAINED_REDUCERS, ...)` instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ctvr.methods.settings import SettingError, require, setting

ReducerName = Literal["none", "tome", "tome_shared", "tempme", "evit", "sta", "diffrate", "testa"]


@dataclass(frozen=True, kw_only=True)
class ReducerConfig:
    """Settings without token reduction, and base class of all settings. None and () mean a default for the backbone."""

    joins_frames: ClassVar[bool] = False  # whether the reducer needs all frames of a video together

    name: ReducerName = "none"

    @property
    def required_num_frames(self) -> int | None:
        """Return the number of frames that the schedule requires; None if it fits any number."""
        return None


@dataclass(frozen=True, kw_only=True)
class ToMeConfig(ReducerConfig):
    """Settings of ToMe, with one merge plan for each frame (`tome`) or for all frames of a video (`tome_shared`)."""

    name: Literal["tome", "tome_shared"] = "tome"
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="number of tokens merged in each frame per block. A list has one value for each of the first blocks, and "
        "later blocks do not merge. none: the paper's values, 2 of 49 or 10 of 196 patches",
    )
    inflection: float = setting(
        0.0,
        doc="change of r over the blocks, from -1 to 1. -1: decrease from 2 r to 0; 0: constant; 1: increase from 0 "
        "to 2 r",
    )
    proportional: bool = setting(True, doc="whether attention weights a token by its number of patches")

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "disable merging within frames")
        require(self, "in [-1, 1]", "inflection", hint="Use 0 for one r in every block.")
        if isinstance(self.r, tuple) and self.inflection:
            listed = ",".join(map(str, self.r))
            raise SettingError(f"<r>={listed}: must be a single value if <inflection> is not 0")


@dataclass(frozen=True, kw_only=True)
class TempMeReducerConfig(ReducerConfig):
    """Settings of TempMe, which merges tokens within frames, then within clips that grow to the whole video."""

    joins_frames = True

    name: Literal["tempme"] = "tempme"
    r: int | None = setting(
        None,
        doc="number of tokens merged in each frame per block; none: the paper's values, 2 of 49 or 10 of 196 patches",
    )
    proportional: bool = setting(True, doc="whether attention weights a token by its number of patches")
    num_frames: int = setting(12, doc="number of frames T of a video; must equal data.num_frames")
    keep_cross: int | None = setting(
        None,
        doc="percentage R_C of the tokens that are kept when clips are joined; none: 70 for at most 64 patches per "
        "frame (B/32), 60 for more (B/16)",
    )
    keep_intra: int | None = setting(
        None,
        doc="percentage R_I of the tokens that are kept when tokens are merged within clips; none: 90 for at most 64 "
        "patches per frame, 80 for more",
    )
    clip_blocks: tuple[int, ...] = setting(
        (), doc="indices, from 0, of the blocks that join clips (the paper counts from 1); (): 8, 9, 10 of 12 blocks"
    )
    clip_groups: tuple[int, ...] = setting(
        (),
        doc="number of clips that are joined into one in each block of `clip_blocks`; (): 2, 2, 3 for 12 frames, and "
        "4, 4, 4 for 64 frames",
    )
    join_clips: bool = setting(
        True,
        doc="whether clips are joined; otherwise the rates apply within frames (`token reduction only` of table 9)",
    )
    positions: Literal["always", "merging", "none"] = setting(
        "always",
        doc="blocks with learned clip positions. always: all blocks that join clips; merging: only those of them "
        "that also merge tokens (released code); none: no block",
    )

    @property
    def required_num_frames(self) -> int | None:
        return self.num_frames

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "disable merging within frames")
        require(self, ">= 1", "num_frames")
        require(self, "in (0, 100]", "keep_cross", "keep_intra", hint="Use 100 to disable merging.")
        _check_rising("clip_blocks", self.clip_blocks)
        if self.clip_groups and (min(self.clip_groups) < 2 or self.num_frames % math.prod(self.clip_groups)):
            raise SettingError(
                f"<clip_groups>={self.clip_groups} must be integers above 1 whose product divides "
                f"<num_frames>={self.num_frames}"
            )


@dataclass(frozen=True, kw_only=True)
class EViTConfig(ReducerConfig):
    """Settings of EViT, which keeps the patches that the class token attends to most."""

    name: Literal["evit"] = "evit"
    stages: tuple[int, ...] = setting(
        (), doc="indices, from 0, of the blocks that remove patches; (): 3, 6, 9 of 12 blocks"
    )
    keep_rate: float = setting(0.7, doc="share of the patches kept in each block of `stages`")
    fuse: bool = setting(True, doc="whether to fuse the removed patches into one token")

    def __post_init__(self) -> None:
        _check_rising("stages", self.stages)
        require(self, "in (0, 1]", "keep_rate", hint="Use <keep_rate>=1 to keep all patches.")


@dataclass(frozen=True, kw_only=True)
class AnnealedEViTConfig(EViTConfig):
    """Settings of EViT with a keep rate that may decrease during training."""

    anneal_from: int = setting(0, doc="number of optimizer steps without removal of patches at the start of training")
    anneal_steps: int = setting(
        0,
        doc="number of further optimizer steps in which the keep rate decreases from 1 to `keep_rate`; 0: no "
        "decrease, `keep_rate` is used immediately",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "anneal_from", "anneal_steps")


@dataclass(frozen=True, kw_only=True)
class STAConfig(ReducerConfig):
    """Settings of STA, which removes patches that resemble patches of the previous frame and have small features."""

    name: Literal["sta"] = "sta"
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="number of patches removed from each frame in each stage; none: 10, 9, 9 of 49 patches. We chose these "
        "values to match the multiply-adds in TempMe's table 2, which does not print r",
    )
    stages: tuple[int, ...] = setting(
        (), doc="indices, from 0, of the blocks after which patches are removed; (): 0, 4, 8 of 12 blocks"
    )

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "keep all patches")
        _check_rising("stages", self.stages)


@dataclass(frozen=True, kw_only=True)
class DiffRateConfig(ReducerConfig):
    """Settings of DiffRate: the numbers of tokens that remain in each block after pruning and after merging."""

    name: Literal["diffrate"] = "diffrate"
    prune_to: tuple[int, ...] = setting(
        (),
        doc="number K_p of tokens, with the class token, that pruning keeps in each block; (): the released schedule "
        "MAE-B 11.5 for a B/16, our schedule for other towers",
    )
    merge_to: tuple[int, ...] = setting(
        (), doc="number K_m of tokens, with the class token, that merging keeps in each block; (): as for prune_to"
    )
    proportional: bool = setting(True, doc="whether attention weights a token by its number of patches")

    def __post_init__(self) -> None:
        if len(self.prune_to) != len(self.merge_to) or min((*self.prune_to, *self.merge_to), default=2) < 2:
            raise SettingError(
                f"<prune_to>={self.prune_to} and <merge_to>={self.merge_to} must have equally many values, all >= 2"
            )


@dataclass(frozen=True, kw_only=True)
class SearchedDiffRateConfig(DiffRateConfig):
    """Settings of DiffRate with a schedule that may be searched in the first task."""

    search_macs: float | None = setting(
        None,
        doc="target of the search for rates, in 10^9 multiply-adds per frame. With a search, the first task trains "
        "only the rates. none: no search",
    )
    search_step: int = setting(
        4, doc="difference between successive candidates for the number of kept patches in the search", exact=True
    )
    lr_rates: float = setting(0.01, doc="learning rate of the rates in the search, as in DiffRate")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "search_step")
        require(self, "> 0", "search_macs")
        if self.search_macs is not None and self.prune_to:
            raise SettingError("<search_macs> searches <prune_to> and <merge_to>", "Omit it, or omit both of them.")
        require(self, ">= 0", "lr_rates")
        if self.search_macs is None and self.lr_rates != SearchedDiffRateConfig.lr_rates:
            raise SettingError("<lr_rates> applies only with <search_macs>", "Set <search_macs>, or omit <lr_rates>.")


@dataclass(frozen=True, kw_only=True)
class TESTAConfig(ReducerConfig):
    """Settings of TESTA, which adds temporal attention and merges frames and patches."""

    joins_frames = True

    name: Literal["testa"] = "testa"
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="number of tokens merged in each frame per block. A list has one value for each of the first blocks, and "
        "later blocks do not merge. none: 2 of 49 or 10 of 196 patches",
    )
    stages: tuple[int, ...] = setting(
        (), doc="indices, from 0, of the blocks with temporal attention; (): 8 to 11 of 12 blocks"
    )
    r_frames: int | tuple[int, ...] | None = setting(
        None,
        doc="number of frames merged in each stage; none: values that we chose to match the multiply-adds in "
        "TempMe's table 2, which does not print these numbers",
    )
    temporal_rank: int = setting(8, doc="rank of LoRA in the temporal attention")
    temporal_gate: Literal["scalar", "linear"] = setting(
        "scalar",
        doc="gate of the temporal attention, whose initial value is 0. scalar: a factor; linear: a linear layer "
        "(released code)",
        exact=True,
    )
    one_class: bool = setting(
        False, doc="whether the class tokens of all frames of a video are equal, as in the released code", exact=True
    )

    def __post_init__(self) -> None:
        _check_counts("r", self.r, "disable merging within frames")
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
        raise SettingError(f"<{name}> must be >= 0, got {counts}", f"Use <{name}>=0 to {effect}.")


def _check_rising(name: str, blocks: tuple[int, ...]) -> None:
    if blocks and list(blocks) != sorted(set(blocks)):
        raise SettingError(f"<{name}> must be in strictly ascending order, got {blocks}")
