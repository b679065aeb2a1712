"""Settings of token reduction, one flat list for all reducers, and the checks of which settings a reducer reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from ctvr.methods.settings import setting

ReducerName = Literal["none", "tome", "tome_shared", "tempme", "evit", "sta", "diffrate", "testa"]
# settings that some reducers alone read -> those
_ONLY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("keep_cross", "keep_intra", "clip_blocks", "clip_groups", "join_clips", "positions"), ("tempme",)),
    **dict.fromkeys(("keep_rate", "fuse", "anneal_from", "anneal_steps"), ("evit",)),
    **dict.fromkeys(("r_frames", "temporal_rank", "temporal_gate", "one_class"), ("testa",)),
    "stages": ("evit", "sta", "testa"),
    **dict.fromkeys(("prune_to", "merge_to", "search_macs", "search_step"), ("diffrate",)),
}


@dataclass(frozen=True, kw_only=True)
class ReducerConfig:
    """Number and places of merged tokens. None and () are filled in from the backbone and the frames."""

    reducer: ReducerName = setting("none", doc="token reduction in the vision tower")
    r: int | tuple[int, ...] | None = setting(
        None,
        doc="tokens merged in each frame and block; several: of the first blocks, the others merge none; "
        "none: the paper's 2 of 49 or 10 of 196 patches. sta: patches removed from each frame in each "
        "stage; none: 10, 9, 9 of 49, which cost as much as TempMe's table 2 prints (without r)",
    )
    inflection: float = setting(
        0.0, doc="slope of ToMe's schedule: from 2 r to 0 (-1), constant (0) or from 0 to 2 r (1)"
    )
    proportional: bool = setting(True, doc="attention in proportion to the number of patches in a token")
    num_frames: int = setting(12, doc="T for reducer=tempme only; must equal data.num_frames")
    keep_cross: int | None = setting(
        None, doc="tempme: R_C in percent; none: 70 up to 64 patches a frame (B/32), else 60 (B/16)"
    )
    keep_intra: int | None = setting(None, doc="tempme: R_I in percent; none: 90 up to 64 patches a frame, else 80")
    clip_blocks: tuple[int, ...] = setting(
        (), doc="tempme: blocks that join clips, from 0 (the paper counts from 1); (): 8, 9, 10 of 12 blocks"
    )
    clip_groups: tuple[int, ...] = setting(
        (), doc="tempme: clips joined in each of these blocks; (): 2, 2, 3 for 12 frames, 4, 4, 4 for 64"
    )
    join_clips: bool = setting(
        True, doc='tempme: joined clips; false: the same rates within single frames ("token reduction only", table 9)'
    )
    positions: Literal["always", "merging", "none"] = setting(
        "always", doc="tempme: blocks with clip positions; merging: as in the released code"
    )
    stages: tuple[int, ...] = setting(
        (),
        doc="blocks, from 0: those where evit acts, after which sta acts, with testa's temporal attention; "
        "(): 3, 6, 9; 0, 4, 8; 8 to 11 of 12",
    )
    keep_rate: float = setting(0.7, doc="evit: share of the patches kept in each of the stages")
    fuse: bool = setting(True, doc="evit: one token made of the removed patches")
    anneal_from: int = setting(0, doc="evit: optimizer steps before patches are removed in training")
    anneal_steps: int = setting(0, doc="evit: further steps in which the rate falls from 1; 0: the full rate at once")
    prune_to: tuple[int, ...] = setting(
        (),
        doc="diffrate: K_p of every block, including the class token; (): the released MAE-B 11.5 for a "
        "B/16, else ours",
    )
    merge_to: tuple[int, ...] = setting((), doc="diffrate: K_m of every block, as prune_to")
    search_macs: float | None = setting(
        None,
        doc="diffrate: target of a search of rates, in 10^9 multiply-adds a frame; it trains rates only, in "
        "the first task",
    )
    search_step: int = setting(4, doc="diffrate: patches between two candidates of the search", exact=True)
    r_frames: int | tuple[int, ...] | None = setting(
        None,
        doc="testa: frames merged in each of the stages; none: numbers that cost as much as TempMe's table 2 "
        "prints (without them)",
    )
    temporal_rank: int = setting(8, doc="testa: rank of LoRA on the temporal attention")
    temporal_gate: Literal["scalar", "linear"] = setting(
        "scalar", doc="testa: gate of the temporal attention; linear: the release's layer, also 0 at first", exact=True
    )
    one_class: bool = setting(
        False, doc="testa: equal class tokens in all frames of a video, as in the release", exact=True
    )

    def __post_init__(self) -> None:
        numbers = self.r if isinstance(self.r, tuple) else () if self.r is None else (self.r,)
        if any(number < 0 for number in numbers):
            raise ValueError(f"r must be >= 0, got {self.r}. Write r=0 to merge nothing within frames.")
        if not -1 <= self.inflection <= 1:
            raise ValueError(f"inflection must lie in [-1, 1], got {self.inflection}. Use 0 for one r in every block.")
        if isinstance(self.r, tuple) and (self.inflection or self.reducer == "tempme"):
            raise ValueError(f"r={','.join(map(str, self.r))}: with inflection or reducer=tempme, r is one number.")
        if self.inflection and self.reducer not in ("none", "tome", "tome_shared"):
            raise ValueError(f"inflection is a setting of reducer=tome, and reducer is {self.reducer!r}.")
        if self.r is not None and self.reducer in ("evit", "diffrate"):
            instead = "keep_rate=0.7" if self.reducer == "evit" else "prune_to and merge_to"
            raise ValueError(f"r is not a setting of reducer={self.reducer}; write {instead}.")
        if len(self.prune_to) != len(self.merge_to) or min((*self.prune_to, *self.merge_to), default=2) < 2:
            raise ValueError(
                f"prune_to={self.prune_to} and merge_to={self.merge_to} must be equally many numbers >= 2."
            )
        gone = self.r_frames if isinstance(self.r_frames, tuple) else (self.r_frames or 0,)
        if min(gone, default=0) < 0 or self.temporal_rank < 1:
            raise ValueError(
                f"r_frames={self.r_frames} counts frames that are merged away, temporal_rank={self.temporal_rank} is "
                "at least 1. Write r_frames=0 to keep all frames."
            )
        if self.search_step < 1 or (self.search_macs is not None and self.search_macs <= 0):
            raise ValueError(f"search_macs and search_step must be > 0, got {self.search_macs}, {self.search_step}.")
        if self.search_macs is not None and self.prune_to:
            raise ValueError("search_macs finds prune_to and merge_to; leave one of both out.")
        if self.num_frames < 1:
            raise ValueError(f"num_frames must be >= 1, got {self.num_frames}.")
        for name in ("keep_cross", "keep_intra"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 100:
                raise ValueError(f"{name} is a percentage in 1..100, got {value}. Write {name}=100 to merge nothing.")
        if not 0 < self.keep_rate <= 1:
            raise ValueError(f"keep_rate is a share in (0, 1], got {self.keep_rate}. Write keep_rate=1 to keep all.")
        if self.anneal_from < 0 or self.anneal_steps < 0:
            raise ValueError(f"anneal_from and anneal_steps count steps, got {self.anneal_from}, {self.anneal_steps}.")
        defaults = {field.name: field.default for field in fields(ReducerConfig)}
        for name, readers in _ONLY.items():
            if getattr(self, name) != defaults[name] and self.reducer not in readers:
                raise ValueError(
                    f"{name} is a setting of reducer={' or '.join(readers)}, and reducer is {self.reducer!r}."
                )
        for name in ("clip_blocks", "stages"):
            blocks = getattr(self, name)
            if blocks and list(blocks) != sorted(set(blocks)):
                raise ValueError(f"{name} must rise, got {blocks}.")
        if self.clip_groups and (min(self.clip_groups) < 2 or self.num_frames % math.prod(self.clip_groups)):
            raise ValueError(
                f"clip_groups={self.clip_groups} must be numbers above 1 whose product divides "
                f"num_frames={self.num_frames}."
            )
