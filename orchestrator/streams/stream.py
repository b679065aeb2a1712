"""The data model of a stream: tasks, each with the items (a video and its captions) of three splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from itertools import accumulate
from typing import Any, Literal

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import gc_disabled
from ctvr.orchestrator.streams.drift import LEAST, chunk_ends
from ctvr.orchestrator.streams.survivors import survivors_note

Domain = Literal["videos", "images", "questions"]
Segment = tuple[float, float]

SPLITS = ("train", "val", "test")
PROTOCOLS = ("ctvr", "cvlm", "ucl", "qa")  # their classes are in learning/evaluation/protocols.py


@dataclass(frozen=True)
class Item:
    """A video in a split of a task. `segment` is in seconds; `path` is a file or a folder of frames.

    In a stream of images, an item is all images of a class in a split, in one array, without captions. In a stream of
    questions, the captions are questions, and each has an answer.
    """

    video: str
    path: str
    segment: Segment | None
    category: str
    captions: tuple[str, ...]
    twin: str | None = None  # id of the same scene played backwards, if the stream has one
    answers: tuple[str, ...] = ()  # answers to the questions; empty in other streams
    relevant: tuple[tuple[str, ...], ...] = ()  # for each caption, ids of all relevant videos; empty: only this video
    chunk: int | None = None  # set for training videos if the stream hides its boundaries (`chunked`)

    def __hash__(self) -> int:
        """Hash only the ID, because Python caches a string's hash and items are hashed often."""
        return hash(self.video)


@dataclass(frozen=True)
class StreamTask:
    """One task of the stream, with the items of its splits."""

    name: str
    categories: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]


@dataclass(frozen=True, repr=False)
class Stream:
    """A stream: its tasks in order, its protocol and its recommended settings."""

    name: str
    tasks: tuple[StreamTask, ...]
    protocol: str  # one of PROTOCOLS, or a plug-in
    has_val: bool  # whether every task has a validation split; otherwise selection uses test videos
    settings: dict[str, Any] = field(default_factory=dict)  # recommended dotted settings
    paper: str | None = None  # the published table that this stream is compared with
    dropped: int = 0  # videos removed by `drop_videos`
    lost_captions: int = 0  # captions of dropped videos in the test split
    text_features: str | None = None  # file with features of all captions, if any (data/)
    features: str = ""  # digest of imported arrays and text features
    held_out: int = 0  # validation videos per category, taken from the published training split
    order: int = 0  # seed of the task order; 0 keeps the order of the manifest
    learned: int = 0  # number of first tasks that another method has learned and stored (`after`)
    newer: Stream | None = None  # the same items with the features of a new embedder, which `after` reads

    def __repr__(self) -> str:
        """Return name and size in one line."""
        return f"Stream({self.name}: {len(self.tasks)} tasks, {len({i.video for _, _, i in iter_items(self)})} videos)"

    def _repr_html_(self) -> str:
        """Return, as HTML for notebooks, the line of `__repr__` and a strip of frames of one test video per task."""
        from ctvr.orchestrator.video.thumbnails import captioned_strips

        first = [(task.name, task.test[0]) for task in self.tasks]
        texts = [f"{name}: {(*item.captions, item.category)[0]}" for name, item in first]
        clips = [("" if item.path.endswith(".npy") else item.path, item.segment) for _, item in first]
        return f"<p>{escape(repr(self))}</p>{captioned_strips(clips, texts)}"

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Return all categories in the order of their first appearance over the tasks."""
        return tuple(dict.fromkeys(category for task in self.tasks for category in task.categories))

    @cached_property
    def _category_indices(self) -> dict[str, int]:
        return {category: index for index, category in enumerate(self.categories)}

    def category_index(self, name: str) -> int:
        """Return the global index of a category.

        Raises:
            KeyError: if no task lists the category.
        """
        return self._category_indices[name]

    @property
    def is_chunked(self) -> bool:
        """Report whether the method's tasks are chunks of the training videos (`chunked`)."""
        return any(item.chunk is not None for task in self.tasks for item in task.train)

    @cached_property
    def _parts(self) -> list[list[StreamTask]]:
        """Return, for each task, the method's tasks that end in it."""
        if not self.is_chunked:
            return [[task] for task in self.tasks]
        found = []
        for task in self.tasks:
            parts = []
            for chunk in dict.fromkeys(item.chunk for item in task.train):
                items = tuple(item for item in task.train if item.chunk == chunk)
                names = {item.category for item in items}
                categories = tuple(name for name in self.categories if name in names)
                parts.append(StreamTask(f"chunk_{(chunk or 0) + 1:02d}", categories, items, (), ()))
            found.append(parts)
        return found

    @cached_property
    def method_tasks(self) -> tuple[StreamTask, ...]:
        """Return the tasks that the method gets: `tasks`, or the chunks of training videos made by `chunked`."""
        return tuple(part for parts in self._parts for part in parts)[self.learned :]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self._parts)))

    def learned_in(self, index: int) -> range:
        """Return the indices of the method's tasks that are learned in task `index`, perhaps none."""
        ends = (self._ends[index - 1] if index else 0, self._ends[index])
        return range(*(max(end - self.learned, 0) for end in ends))

    def method_task(self, index: int) -> int:
        """Return the index of the method's newest task when the videos of task `index` are stored.

        The index is negative if the task precedes this method's first task (see `after`).
        """
        return self._ends[index] - 1 - self.learned

    def after(self, done: int) -> Stream:
        """Return the stream for a method that begins after `done` tasks; its first task then has index 0."""
        return self.after_learned(self._ends[done - 1])

    def after_learned(self, learned: int) -> Stream:
        """Return the stream for a method that begins after another method learned `learned` method tasks.

        If `newer` is set, videos and captions have the features of `newer`. Name and digest are unchanged.
        """
        if self.newer is None:
            return replace(self, learned=learned)
        paths = {item.video: item.path for _, _, item in iter_items(self.newer)}
        parts = [[tuple(replace(i, path=paths[i.video]) for i in getattr(t, s)) for s in SPLITS] for t in self.tasks]
        tasks = tuple(StreamTask(task.name, task.categories, *part) for task, part in zip(self.tasks, parts))
        return replace(self, tasks=tasks, text_features=self.newer.text_features, learned=learned)

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits that the tasks have."""
        return SPLITS if self.has_val else ("train", "test")

    def items(self, task_index: int, split: str) -> tuple[Item, ...]:
        """Return the items of one split ("train", "val" or "test") of one task (0-based).

        Raises:
            ConfigError: if the split is unknown.
        """
        if split not in SPLITS:
            raise ConfigError(f"{split!r} is not one of {', '.join(SPLITS)}.{suggest(split, SPLITS)}", "split")
        found: tuple[Item, ...] = getattr(self.tasks[task_index], split)
        return found

    def pairs(self, task_index: int, split: str) -> list[tuple[int, int]]:
        """Return the text-video pairs: (index of the item in its split, index of the caption in its item)."""
        items = self.items(task_index, split)
        return [(i, c) for i, item in enumerate(items) for c in range(len(item.captions))]

    @cached_property
    @gc_disabled()
    def digest(self) -> str:
        """Return the SHA-256 of tasks, ids, captions and imported features; a run's key adds a digest of the frames."""
        tasks = [
            [list(task.categories), *([_identity(item) for item in getattr(task, split)] for split in SPLITS)]
            for task in self.tasks
        ]
        features = {"features": self.features} if self.features else {}
        return digest_of({"protocol": self.protocol, "tasks": tasks, **features})

    @cached_property
    def content(self) -> str:
        """Return a SHA-256 like `digest`, but independent of the order of the tasks."""
        return digest_of(sorted(replace(self, tasks=(task,)).digest for task in self.tasks))

    def in_order(self, order: int) -> Stream:
        """Return the stream with its tasks in the random order of the seed `order`; 0 leaves them unchanged.

        A reordered stream is not a published benchmark, so `paper` is dropped.
        """
        if not order:
            return self
        drawn = sorted(range(len(self.tasks)), key=lambda place: hashlib.sha256(f"{order} {place}".encode()).digest())
        return replace(self, tasks=tuple(self.tasks[place] for place in drawn), order=order, paper=None)

    def blurred(self, percent: int) -> Stream:
        """Return the stream with blurry boundaries: a share of each task's training videos is learned in other tasks.

        Each task gives `percent` % of its training videos (rounded down, selected by a hash of their IDs) to other
        tasks in turn. Searched videos do not move. A task's categories include those of the videos it receives. Source:
        Bang et al. (Rainbow Memory, CVPR 2021). The result is not a published benchmark, so `paper` is dropped.

        Raises:
            ConfigError: for a stream of one task, or without captions.
        """
        tasks = len(self.tasks)
        if tasks < 2 or self.domain != "videos":
            raise ConfigError(
                f"stream: {self.name}_blurry{percent}: needs several tasks of videos with captions. "
                f"Omit _blurry{percent}."
            )
        kept: list[list[Item]] = []
        given: list[list[Item]] = [[] for _ in self.tasks]
        for place, task in enumerate(self.tasks):
            drawn = sorted(task.train, key=lambda item: hashlib.sha256(f"blurry {item.video}".encode()).digest())
            drawn = drawn[: len(task.train) * percent // 100]
            for number, item in enumerate(drawn):
                given[(place + 1 + number % (tasks - 1)) % tasks].append(item)
            gone = {item.video for item in drawn}
            kept.append([item for item in task.train if item.video not in gone])
        made = []
        for task, own, others in zip(self.tasks, kept, given):
            categories = tuple(dict.fromkeys([*task.categories, *(item.category for item in others)]))
            made.append(replace(task, train=(*own, *others), categories=categories))
        return replace(self, name=f"{self.name}_blurry{percent}", tasks=tuple(made), paper=None)

    def chunked(self, count: int) -> Stream:
        """Return the stream with boundaries that the method does not know: it gets `count` chunks as tasks.

        The training videos arrive task by task. Within a task, their IDs determine a pseudo-random order. The videos
        are cut into chunks whose sizes differ by at most one. A chunk is learned in the task in which its last video
        arrives. Searched videos do not move. The result is not a published benchmark, so `paper` is dropped.

        Raises:
            ConfigError: for a stream without captions, and if no chunk is complete at the end of the first task.
        """
        name, arrived = f"{self.name}_chunks{count}", self._arrived(f"_chunks{count}")
        total, first = len(arrived), len(self.tasks[0].train)
        least = total // (first + 1) + 1
        if not least <= count <= total:
            raise ConfigError(
                f"stream: {name}: chunks of {total} training videos must be complete at the end of the first task, "
                f"which has {first}. Use {least} to {total} chunks."
            )
        return self._cut(name, arrived, [total * number // count for number in range(1, count + 1)])

    def cut_at_drift(self, longest: int) -> Stream:
        """Return the stream with boundaries that the method does not know: a chunk ends where the captions change.

        Like `chunked`, except that a chunk ends where a test (drift.py) detects a change in the captions' words, or
        when it has `longest` videos.

        Raises:
            ConfigError: for a stream without captions, and if no chunk may be complete at the end of the first task.
        """
        name, arrived = f"{self.name}_drift{longest}", self._arrived(f"_drift{longest}")
        first = len(self.tasks[0].train)
        if first < LEAST:
            fault = f"{name}: the first task has {first} videos, but a chunk must have at least {LEAST}"
            raise ConfigError(fault, "stream", remedy=f"Omit _drift{longest}.")
        if not LEAST <= longest <= first:
            fault = f"{name}: _drift takes the maximum number of videos per chunk, {LEAST} to {first}"
            raise ConfigError(fault, "stream", remedy=f"Use {self.name}_drift{first}.")
        captions = [self.tasks[place].train[row].captions for place, row in arrived]
        return self._cut(name, arrived, chunk_ends(captions, longest))

    def _arrived(self, suffix: str) -> list[tuple[int, int]]:
        """Return (task, row) of the training videos in the order in which they arrive."""
        if self.domain != "videos":
            raise ConfigError(f"{self.name}{suffix}: needs videos with captions", "stream", remedy=f"Omit {suffix}.")
        return [
            (place, row)
            for place, task in enumerate(self.tasks)
            for row in sorted(range(len(task.train)), key=lambda row, task=task: _draw(task.train[row]))  # type: ignore[misc]
        ]

    def _cut(self, name: str, arrived: list[tuple[int, int]], ends: list[int]) -> Stream:
        learned: list[list[Item]] = [[] for _ in self.tasks]
        for number, (start, end) in enumerate(zip([0, *ends], ends)):
            part = sorted(arrived[start:end])
            learned[part[-1][0]] += [replace(self.tasks[place].train[row], chunk=number) for place, row in part]
        made = tuple(replace(task, train=tuple(items)) for task, items in zip(self.tasks, learned))
        return replace(self, name=name, tasks=made, paper=None)

    @property
    def domain(self) -> Domain:
        """Return the kind of the items: "videos" (with captions), "questions" or "images". Methods support one kind."""
        domains: dict[str, Domain] = {"ucl": "images", "qa": "questions"}
        return domains.get(self.protocol, "videos")

    @cached_property
    def has_features(self) -> bool:
        """Report whether the videos are imported arrays of features (.npy)."""
        paths = (item.path for _, _, item in iter_items(self))
        return self.domain != "images" and next(paths).endswith(".npy")

    @property
    def table_caveat(self) -> str:
        """Return the caveat that a table prints for results on this stream, or ""."""
        marks = [] if self.has_val else ["no validation split: settings and epochs are selected on test videos"]
        if self.held_out:
            marks.append(
                f"validation videos: {self.held_out} training videos of every category are held out, and settings and "
                "epochs are selected on them"
            )
        if self.protocol not in PROTOCOLS:
            marks.append(
                f"evaluated by the protocol {self.protocol} of another package: compare only with rows of that protocol"
            )
        if self.dropped:
            left = sum(len(item.captions) for task in self.tasks for item in task.test)
            bounds = survivors_note(self.lost_captions, left)
            marks.append(f"{self.dropped} missing videos left out: not comparable with the paper{bounds}")
        return "; ".join(marks)


def _identity(item: Item) -> list[Any]:
    more: list[Any] = [list(item.answers)] if item.answers else []
    more += [{"relevant": item.relevant}] if item.relevant else []
    more += [{"chunk": item.chunk}] if item.chunk is not None else []
    return [item.video, item.segment, item.category, list(item.captions), item.twin, *more]


def _draw(item: Item) -> bytes:
    return hashlib.sha256(f"chunks {item.video}".encode()).digest()


def iter_items(stream: Stream) -> Iterator[tuple[StreamTask, str, Item]]:
    """Return an iterator of (task, split name, item) over all items."""
    return ((task, split, item) for task in stream.tasks for split in SPLITS for item in getattr(task, split))
