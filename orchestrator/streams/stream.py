"""What a stream is: tasks, each with the items (a video and its captions) of three splits."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.digests import canonical
from ctvr.orchestrator.errors import ConfigError

Protocol = Literal["ctvr", "cvlm", "ucl", "qa"]
Domain = Literal["videos", "images", "questions"]
Segment = tuple[float, float]

SPLITS = ("train", "val", "test")


@contextmanager
def gc_disabled() -> Iterator[None]:
    """No search for circles of objects while 100,000 items are made or written, which have none: half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Item:
    """One video of one split of one task. `segment` is in seconds; `path` is a file or a folder of frames.

    In a stream of images: all images of a class in a split, in one array, without captions. In one of questions the
    captions are questions, each with its answer.
    """

    video: str
    path: str
    segment: Segment | None
    category: str
    captions: tuple[str, ...]
    twin: str | None = None  # the same scene filmed backwards, if the stream has one
    answers: tuple[str, ...] = ()  # of the questions; none in other streams

    def __hash__(self) -> int:
        """Of the id alone, whose hash Python keeps: a start asks 100,000 items four times."""
        return hash(self.video)


@dataclass(frozen=True)
class StreamTask:
    """One step of the stream."""

    name: str
    categories: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]


@dataclass(frozen=True)
class Stream:
    """The whole sequence of tasks."""

    name: str
    tasks: tuple[StreamTask, ...]
    protocol: Protocol
    has_val: bool  # every task has a validation split; without one, choices are made on test videos
    settings: dict[str, Any] = field(default_factory=dict)  # recommended dotted settings
    paper: str | None = None  # the published table this stream stands beside
    dropped: int = 0  # videos left out by `drop_videos`
    text_features: str | None = None  # file with features of all captions, where there are some (data/)
    held_out: int = 0  # training videos of every category of the published split that are its validation split
    order: int = 0  # of the tasks: as the stream has them, or drawn by this number

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """All categories, in the order of their first appearance over the tasks."""
        return tuple(dict.fromkeys(category for task in self.tasks for category in task.categories))

    @cached_property
    def _category_indices(self) -> dict[str, int]:
        return {category: index for index, category in enumerate(self.categories)}

    def category_index(self, name: str) -> int:
        """The global index of a category.

        Raises:
            KeyError: if no task lists the category.
        """
        return self._category_indices[name]

    def items(self, task_index: int, split: str) -> tuple[Item, ...]:
        """The items of one split ("train", "val" or "test") of one task (0-based)."""
        if split not in SPLITS:
            raise ConfigError(f"split: {split!r} is none of {', '.join(SPLITS)}.{suggest(split, SPLITS)}")
        found: tuple[Item, ...] = getattr(self.tasks[task_index], split)
        return found

    def pairs(self, task_index: int, split: str) -> list[tuple[int, int]]:
        """Every (index of the item in its split, index of the caption in its item): the text-video pairs."""
        items = self.items(task_index, split)
        return [(i, c) for i, item in enumerate(items) for c in range(len(item.captions))]

    @cached_property
    @gc_disabled()
    def digest(self) -> str:
        """sha256 over all that decides results; where the files lie, names and recommended settings do not."""
        tasks = [
            [list(task.categories), *([_identity(item) for item in getattr(task, split)] for split in SPLITS)]
            for task in self.tasks
        ]
        return hashlib.sha256(canonical({"protocol": self.protocol, "tasks": tasks}).encode()).hexdigest()

    @cached_property
    def content(self) -> str:
        """sha256 as `digest`, of the tasks in any order."""
        alone = sorted(replace(self, tasks=(task,)).digest for task in self.tasks)
        return hashlib.sha256(canonical(alone).encode()).hexdigest()

    def in_order(self, order: int) -> Stream:
        """The same tasks in an order that the number `order` draws; 0 leaves them as they are.

        In another order it is no published benchmark.
        """
        if not order:
            return self
        drawn = sorted(range(len(self.tasks)), key=lambda place: hashlib.sha256(f"{order} {place}".encode()).digest())
        return replace(self, tasks=tuple(self.tasks[place] for place in drawn), order=order, paper=None)

    @property
    def domain(self) -> Domain:
        """What its items are: videos with captions, or with questions, or labelled images; each has its methods."""
        domains: dict[str, Domain] = {"ucl": "images", "qa": "questions"}
        return domains.get(self.protocol, "videos")

    @cached_property
    def has_features(self) -> bool:
        """Whether its videos are arrays of features (.npy) that were made elsewhere."""
        return self.domain != "images" and self.tasks[0].train[0].path.endswith(".npy")

    @property
    def table_caveat(self) -> str:
        """What a table must say about numbers from this stream; empty if there is nothing to say."""
        marks = [] if self.has_val else ["no validation split: what is chosen here is chosen on test videos"]
        if self.held_out:
            marks.append(
                f"protocol with held-out validation videos: {self.held_out} training videos of every category are not "
                "trained on, and choices are made on them"
            )
        if self.dropped:
            marks.append(f"{self.dropped} missing videos left out: not comparable with the paper")
        return "; ".join(marks)


def _identity(item: Item) -> list[Any]:
    answers = [list(item.answers)] if item.answers else []
    return [item.video, item.segment, item.category, list(item.captions), item.twin, *answers]


def iter_items(stream: Stream) -> Iterator[tuple[StreamTask, str, Item]]:
    """Every item with its task and the name of its split."""
    for task in stream.tasks:
        for split in SPLITS:
            for item in getattr(task, split):
                yield task, split, item


def describe(stream: Stream) -> str:
    """Categories, videos and pairs of each task, one line each."""
    lines = []
    for task in stream.tasks:
        counts = [
            f"{split} {len(items)} videos, {sum(len(item.captions) for item in items)} captions"
            for split in SPLITS
            if (items := getattr(task, split))
        ]
        lines.append(f"{task.name}: {len(task.categories)} categories; " + "; ".join(counts))
    return "\n".join(lines)
