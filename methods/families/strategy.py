"""Base classes of strategies: delegation to the wrapped retriever, and a replay buffer of pairs of previous tasks.

This file is not a method. A strategy wraps a retriever (`base`), which does not refer to the strategy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from ctvr.methods.base import Batch, Capabilities, Frozen, Method, PairSource, Task
from ctvr.methods.families.momentum import MomentumRetriever
from ctvr.methods.hooks import Hooks
from ctvr.methods.layers.replay.buffer import Policy, ReplayBuffer
from ctvr.methods.settings import SettingError, require, setting

RESERVOIR = (
    "policy of the buffer. reservoir: one uniform sample of all pairs so far, as in the original; ring: an equal "
    "number of pairs of each task"
)  # help text of methods whose original uses a reservoir


class Strategy(Method):
    """Base class of strategies; it delegates members of `Method`, except NOT_FORWARDED, to the wrapped retriever."""

    wraps = True
    needs_momentum: ClassVar[bool] = False  # whether it needs a retriever with key queues (families/momentum.py)
    teacher: Frozen | None = None  # an earlier model that a strategy may distill

    @classmethod
    def compares(cls, config: Any) -> bool:
        """Return whether the strategy uses the retriever's `score` to compute similarities within a batch."""
        return False

    @classmethod
    def check_base(cls, config: Any, base: type[Method], base_config: Any) -> None:
        if cls.needs_momentum and not issubclass(base, MomentumRetriever):
            raise SettingError(
                "the strategy needs a momentum retriever, which has queues of keys", write="<base>=base_moco"
            )
        if cls.compares(config) and (reason := base.capabilities(base_config).score_caveat):
            raise ValueError(f"the strategy compares similarities within a batch, and {reason}.")

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        return Capabilities(uses_all_parameters=True)

    def __init__(self, config: Any, base: Method) -> None:
        super().__init__()
        self.config, self.base = config, base

    def encode_own_captions(self, batch: Batch, encode: Callable[..., Tensor] | None = None) -> Tensor:
        """Encode captions as the retriever does; if the strategy defines `encode_text`, use that function."""
        if type(self.base).encode_own_captions is Hooks.encode_own_captions:
            return super().encode_own_captions(batch, encode)
        own = None if type(self).encode_text is Strategy.encode_text else self.encode_text
        return self.base.encode_own_captions(batch, encode or own)


def _delegate(name: str) -> Any:
    """Return a strategy's member that delegates to member `name` of the retriever, a function or an attribute."""
    default = getattr(Method, name)
    if name in SET_BY_THE_LOOP:
        return property(lambda self: getattr(self.base, name), lambda self, value: setattr(self.base, name, value))
    if not callable(default):
        return _Fact(name)

    @functools.wraps(default)
    def call(self: Strategy, *args: Any, **kwargs: Any) -> Any:
        return default(self, *args, **kwargs) if _is_own(self, name) else getattr(self.base, name)(*args, **kwargs)

    if name in TRAINS:
        call.is_neutral = False  # type: ignore[attr-defined]
    return call


class _Fact:
    """Descriptor of a strategy's attribute: the retriever's value, or `Method`'s default if `_is_own` is true."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, strategy: Strategy | None, cls: type) -> Any:
        if strategy is None or _is_own(strategy, self.name):
            return getattr(Method, self.name)
        return getattr(strategy.base, self.name)


def _is_own(strategy: Strategy, name: str) -> bool:
    """Return whether a strategy overrides a member on which the default of `name` in `Method` depends (BUILT_ON)."""
    cls = type(strategy)
    return any(getattr(cls, each) is not getattr(Strategy, each) for each in BUILT_ON.get(name, ()))


# Member -> members that its default calls or describes. A strategy that overrides one of these uses the default
BUILT_ON = {
    "encode_video_for_task": ("encode_video",),
    "normalize_scores_v2t": ("normalize_scores",),
    "info_nce": ("logits",),
    "text_passes": ("encode_text",),
    "frozen_blocks": ("encode_video",),
}
SET_BY_THE_LOOP = ("gallery_is_fresh", "is_joint")
TRAINS = ("losses", "logits")  # `Capabilities.accumulation` is not derived for a strategy that delegates them
# Members of `Method` that are not delegated to the retriever, with the reason
NOT_FORWARDED = {
    "Config": "each class has separate settings",
    "PRESETS": "each class has separate presets",
    "capabilities": "describes the class; `Capabilities.wrapping` combines it with the capabilities of the retriever",
    "declared": "describes the instance, combined with the capabilities of the retriever",
    "wraps": "true for a strategy, false for a retriever",
    "domain": "a strategy declares it",
    "controls": "rows that the class adds to a table",
    "check_base": "the strategy checks the retriever",
    "trains_on_searched": "receives the value of the retriever as `of_base`",
    "keeps_videos": "receives the value of the retriever as `of_base`",
}
for _name in {**vars(Hooks), **vars(Method)}:
    if not _name.startswith("_") and _name not in {*NOT_FORWARDED, *vars(Strategy)}:
        setattr(Strategy, _name, _delegate(_name))


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Settings of the replay buffer (`ReplayBuffer`); BMU-MoCo's paper stores 10,000 pairs, a tenth of a task."""

    buffer_size: int = setting(
        256,
        doc="maximum number of pairs in the replay buffer, which stores the IDs of pairs and reads their frames from "
        "the store",
        part="loss",
    )
    buffer_share: float | None = setting(
        None,
        doc="share of the pairs of each previous task that the replay buffer keeps, for example 0.05, instead of "
        "buffer_size and buffer_policy; none: buffer_size is used",
        part="loss",
    )
    buffer_policy: Policy = setting(
        "ring",
        doc="policy of the buffer. ring: an equal number of pairs of each task; reservoir: one uniform sample of all "
        "pairs so far",
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "buffer_size", hint="Use 0 for no replay.")
        require(self, "in (0, 1]", "buffer_share", hint="Use 0.05 for 5 %, or <buffer_size>=0 for no replay.")

    @property
    def is_used(self) -> bool:
        """Return whether the buffer stores pairs."""
        return bool(self.buffer_size or self.buffer_share)


class ReplayStrategy(Strategy):
    """Base class of strategies that store the ids of pairs of finished tasks, and read these pairs again.

    Stored pairs are read without augmentation. A retriever with task-conditioned text encodes a stored caption for the
    task of its pair.
    """

    @classmethod
    def keeps_videos(cls, config: ReplayConfig, of_base: bool = False) -> bool:
        return of_base or config.is_used

    def __init__(self, config: Any, base: Method, quota: Literal["dynamic", "static"] = "dynamic") -> None:
        super().__init__(config, base)
        self.memory = ReplayBuffer(config.buffer_size, config.buffer_policy, quota, config.buffer_share)
        self.index = 0  # index of the current task

    def set_pair_source(self, source: PairSource) -> None:
        super().set_pair_source(source)
        self.memory.source = source

    def begin_task(self, task: Task) -> None:
        self.index = task.index
        super().begin_task(task)

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        batches = self.memory.observe(task, loader, self.kept_features)
        super().end_task(task, batches)
        if self.config.is_used:
            for _ in batches:  # read the batches that the retriever has not read
                pass

    def kept_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the video and text features (B, d) that are stored with pairs; the default stores none: (B, 0)."""
        none = batch.frames.new_empty(len(batch.video_ids), 0)
        return none, none
