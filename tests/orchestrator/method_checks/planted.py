"""Methods with one fault each, and the correct method from which they derive."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ctvr.methods.base import Capabilities, l2_normalize
from ctvr.orchestrator.catalog.method_templates import MODULE

# The correct one is the output of `ctvr methods new`, so that it satisfies every check that a fault below violates
_written: dict[str, Any] = {"__name__": __name__}
exec(MODULE.replace("NAME", "plain").replace("CLASS", "Plain"), _written)
PlainConfig = _written["PlainConfig"]


class Plain(_written["Plain"]):
    def __init_subclass__(cls) -> None:
        cls.Config = vars(cls).get("Config", PlainConfig)  # a method has one of its own


@dataclass(frozen=True, kw_only=True)
class DeadConfig(PlainConfig):
    num_heads: int = 4


class DeadSetting(Plain):
    Config = DeadConfig

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.heads = [0] * config.num_heads


@dataclass(frozen=True, kw_only=True)
class SwitchedConfig(PlainConfig):
    """Settings that matter only under other settings: `size` in one mode, `places` and `sizes` together."""

    mode: Literal["none", "first", "last"] = "none"
    size: int = 2
    places: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    blocks: int = 4

    def __post_init__(self) -> None:
        if self.mode == "none" and self.size != 2:
            raise ValueError("size is a setting of mode=first or last")
        if len(self.places) != len(self.sizes):
            raise ValueError("places and sizes are equally many")
        if self.blocks != 4:
            raise ValueError("blocks is 4")


class Switched(Plain):
    Config = SwitchedConfig

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        counts = {"first": config.size, "last": -config.size}
        self.register_buffer("read", torch.tensor([counts.get(config.mode, 0), *config.places, *config.sizes]))


class IdleUnderOne(Switched):
    """`size` is accepted in mode=last, but used in mode=first."""

    Config = SwitchedConfig

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        if config.mode == "last":
            self.read.zero_()


class Counts(Plain):
    """Keeps state that is not a buffer."""

    learned = 0

    def end_task(self, task, loader):
        self.learned += 1

    def encode_text(self, tokens, task=None):
        return super().encode_text(tokens) + 0.01 * self.learned


class ClassMemory(Plain):
    """Keeps state of one run in the next one."""

    seen: list[float] = []

    def after_step(self):
        self.seen.append(1.0)

    def encode_text(self, tokens, task=None):
        return super().encode_text(tokens) + 0.001 * len(self.seen)


class Peeks(Plain):
    """Reads pairs of later tasks, by their ids."""

    def set_pair_source(self, source):
        self.source = source

    def begin_task(self, task):
        self.source.pairs([10**6])


class KnowsOrder(Plain):
    def score(self, queries, videos):
        return super().score(queries, videos) + torch.eye(len(queries), len(videos))


class KnowsTask(Plain):
    def encode_text(self, tokens, task=None):
        return super().encode_text(tokens) + 0.1 * (task or 0)


class LeavesATrace(Plain):
    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.register_buffer("asked", torch.zeros(()))

    def encode_text(self, tokens, task=None):
        if not self.training:
            self.asked += 1
        return super().encode_text(tokens)


class WritesIntoTheStore(Plain):
    def on_gallery_stored(self, task, gallery):
        self.former = [*getattr(self, "former", []), gallery]
        self.former[0].mul_(1.5 if task.index else 1.0)


class WritesIntoTheBatch(Plain):
    def losses(self, batch):
        batch.frames.mul_(0.5)
        return super().losses(batch)


class MixesRows(Plain):
    def encode_video(self, frames):
        found = super().encode_video(frames)
        return l2_normalize(found - 0.5 * found.mean(dim=0))


class NotFrozen(Plain):
    @classmethod
    def capabilities(cls, config):
        return Capabilities(text_is_frozen=True)


class VideosNotFrozen(Plain):
    @classmethod
    def capabilities(cls, config):
        return Capabilities(videos_are_frozen=True)


class Crashes(Plain):
    def encode_video(self, frames):
        return frames @ torch.zeros(7, 7)


class ChangesAsTasksBegin(Plain):
    """A text tower that a task changes before anything is learned."""

    def begin_task(self, task):
        super().begin_task(task)
        self.turned = task.index

    def encode_text(self, tokens, task=None):
        found = super().encode_text(tokens)
        return found.roll(self.turned, dims=-1)
