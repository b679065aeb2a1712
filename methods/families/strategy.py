"""Base classes of strategies: delegation to the wrapped retriever, and a memory of former pairs.

This file is not a method. A strategy wraps a retriever (`base`), which does not refer to the strategy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from ctvr.methods.base import Batch, Capabilities, Frozen, Method, PairSource, ParamGroup, SeparableEncoders, Task
from ctvr.methods.capabilities import neutral
from ctvr.methods.families.momentum import MomentumRetriever
from ctvr.methods.layers.replay.buffer import Policy, ReplayBuffer
from ctvr.methods.settings import require, setting

RESERVOIR = (
    "policy of the buffer. reservoir: one uniform sample of all pairs so far, as the original; ring: an equal share "
    "for each task"
)  # of a method whose original keeps a reservoir


class Strategy(Method):
    """A strategy without changes: it delegates every call to the wrapped retriever."""

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
            raise ValueError(
                "the strategy works on queues of keys, which the momentum retrievers have. Write method.base=base_moco."
            )
        if cls.compares(config) and (reason := base.capabilities(base_config).score_caveat):
            raise ValueError(f"the strategy compares similarities within a batch, and {reason}.")

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        return Capabilities(uses_all_parameters=True)

    def __init__(self, config: Any, base: Method) -> None:
        super().__init__()
        self.config, self.base = config, base
        self.max_frames = base.max_frames

    @neutral
    def set_pair_source(self, source: PairSource) -> None:
        self.base.set_pair_source(source)

    def begin_task(self, task: Task) -> None:
        self.base.begin_task(task)

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        self.base.end_task(task, loader)

    @neutral
    def on_gallery_stored(self, task: Task, gallery: Tensor) -> None:
        self.base.on_gallery_stored(task, gallery)

    def param_groups(self) -> list[ParamGroup]:
        return self.base.param_groups()

    def encode_video(self, frames: Tensor) -> Tensor:
        return self.base.encode_video(frames)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self.base.encode_text(tokens, task)

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        return self.base.score(queries, gallery)

    @neutral
    def normalize_scores(self, scores: Tensor) -> Tensor:
        return self.base.normalize_scores(scores)

    @neutral
    def normalize_scores_v2t(self, scores: Tensor) -> Tensor:
        return self.base.normalize_scores_v2t(scores)

    def scale(self) -> Tensor:
        return self.base.scale()

    def logits(self, batch: Batch) -> Tensor:
        return self.base.logits(batch)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return self.base.losses(batch)

    def separable_encoders(self) -> SeparableEncoders | str:
        """Return the retriever's: a strategy does not compute features in another way."""
        return self.base.separable_encoders()

    def after_step(self) -> None:
        self.base.after_step()

    def task_metrics(self) -> dict[str, float]:
        return self.base.task_metrics()

    def similarities(self) -> dict[str, Tensor]:
        return self.base.similarities()

    def batch_metrics(self) -> dict[str, float | Tensor]:
        return self.base.batch_metrics()


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Settings of every memory; see `ReplayBuffer`. BMU-MoCo's paper keeps 10,000 pairs, a tenth of a task."""

    buffer_size: int = setting(256, doc="pairs in the replay buffer; their frames stay in the store")
    buffer_share: float | None = setting(
        None,
        doc="share of every earlier task's pairs in the replay buffer, such as 0.05, instead of buffer_size and "
        "buffer_policy; none: buffer_size",
    )
    buffer_policy: Policy = setting(
        "ring",
        doc="policy of the buffer. ring: an equal share for each task; reservoir: one uniform sample of all "
        "pairs so far",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "buffer_size", hint="Use 0 for no replay.")
        require(self, "in (0, 1]", "buffer_share", hint="Use 0.05 for 5 %, or buffer_size=0 for no replay.")

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
