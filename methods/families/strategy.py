"""Base classes of strategies: delegation to the wrapped retriever, and a memory of former pairs.

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
    "policy of the buffer. reservoir: one uniform sample of all pairs so far, as the original; ring: an equal share "
    "for each task"
)  # of a method whose original keeps a reservoir


class Strategy(Method):
    """A strategy without changes: every member of the contract is the wrapped retriever's, except NOT_FORWARDED."""

    wraps = True
    needs_momentum: ClassVar[bool] = False  # it works on the queues of the retrievers of methods/families/momentum.py
    teacher: Frozen | None = None  # a former model that a strategy may distil

    @classmethod
    def compares(cls, config: Any) -> bool:
        """Return whether the strategy reads similarities within a batch from the retriever's `score`."""
        return False

    @classmethod
    def check_base(cls, config: Any, base: type[Method], base_config: Any) -> None:
        if cls.needs_momentum and not issubclass(base, MomentumRetriever):
            raise SettingError(
                "the strategy works on queues of keys, which the momentum retrievers have", write="<base>=base_moco"
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
        """Encode captions as the retriever does, by the `encode_text` of the strategy if it has its own."""
        if type(self.base).encode_own_captions is Hooks.encode_own_captions:
            return super().encode_own_captions(batch, encode)
        own = None if type(self).encode_text is Strategy.encode_text else self.encode_text
        return self.base.encode_own_captions(batch, encode or own)


def _forwarded(name: str) -> Any:
    """Return a member of a strategy that calls the retriever's, or reads and sets the retriever's attribute."""
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
    """The retriever's attribute, unless the instance of the strategy sets its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, strategy: Strategy | None, cls: type) -> Any:
        if strategy is None or _is_own(strategy, self.name):
            return getattr(Method, self.name)
        return getattr(strategy.base, self.name)


def _is_own(strategy: Strategy, name: str) -> bool:
    """Return whether a strategy overrides a member on which the contract's default of `name` is built."""
    cls = type(strategy)
    return any(getattr(cls, each) is not getattr(Strategy, each) for each in BUILT_ON.get(name, ()))


# Member -> members that its default calls, or to which it applies. A strategy that overrides one has the default
BUILT_ON = {
    "encode_video_for_task": ("encode_video",),
    "normalize_scores_v2t": ("normalize_scores",),
    "info_nce": ("logits",),
    "text_passes": ("encode_text",),
    "frozen_blocks": ("encode_video",),
}
SET_BY_THE_LOOP = ("gallery_is_fresh", "is_joint")
TRAINS = ("losses", "logits")  # `Capabilities.accumulation` is not derived for a strategy that keeps them
# Members of the contract that are not the retriever's, with the reason
NOT_FORWARDED = {
    "Config": "each class has its settings",
    "PRESETS": "each class has its presets",
    "capabilities": "facts of the class; `Capabilities.wrapping` combines them with the retriever's",
    "declared": "facts of the instance, combined with the retriever's",
    "wraps": "true for a strategy, false for a retriever",
    "domain": "a strategy states its own",
    "controls": "rows of the class in a table",
    "check_base": "the strategy checks the retriever",
    "trains_on_searched": "receives the retriever's as `of_base`",
    "keeps_videos": "receives the retriever's as `of_base`",
}
for _name in {**vars(Hooks), **vars(Method)}:
    if not _name.startswith("_") and _name not in {*NOT_FORWARDED, *vars(Strategy)}:
        setattr(Strategy, _name, _forwarded(_name))


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Settings of every memory; see `ReplayBuffer`. BMU-MoCo's paper keeps 10,000 pairs, a tenth of a task."""

    buffer_size: int = setting(256, doc="pairs in the replay buffer; their frames stay in the store", part="loss")
    buffer_share: float | None = setting(
        None,
        doc="share of every earlier task's pairs in the replay buffer, such as 0.05, instead of buffer_size and "
        "buffer_policy; none: buffer_size",
        part="loss",
    )
    buffer_policy: Policy = setting(
        "ring",
        doc="policy of the buffer. ring: an equal share for each task; reservoir: one uniform sample of all "
        "pairs so far",
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "buffer_size", hint="Use 0 for no replay.")
        require(self, "in (0, 1]", "buffer_share", hint="Use 0.05 for 5 %, or <buffer_size>=0 for no replay.")

    @property
    def is_used(self) -> bool:
        """Return whether the buffer stores anything."""
        return bool(self.buffer_size or self.buffer_share)


class ReplayStrategy(Strategy):
    """A strategy that keeps the numbers of pairs of every finished task and reads the pairs again.

    They are read without augmentation. A retriever that encodes captions by task encodes them for their own task.
    """

    @classmethod
    def keeps_videos(cls, config: ReplayConfig, of_base: bool = False) -> bool:
        return of_base or config.is_used

    def __init__(self, config: Any, base: Method, quota: Literal["dynamic", "static"] = "dynamic") -> None:
        super().__init__(config, base)
        self.memory = ReplayBuffer(config.buffer_size, config.buffer_policy, quota, config.buffer_share)
        self.index = 0  # of the current task

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
            for _ in batches:  # batches that the retriever has not read
                pass

    def kept_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return video and text features (B, d) to keep with pairs; none, unless a strategy overrides it."""
        none = batch.frames.new_empty(len(batch.video_ids), 0)
        return none, none
