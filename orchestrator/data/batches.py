"""Batches of a stream: store key -> uint8 frames -> normalized tensors on the device.

Frames come from the store (frames.py). Augmentation runs on the device, on whole batches (augment.py).

Shapes: B pairs, T frames, H = W image size, L text length.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ctvr.methods.base import Batch, Task
from ctvr.methods.layers.transfer import pinned, to_device, trim_padding
from ctvr.orchestrator.data.augment import crop_and_flip, gray_and_jitter
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import stacked
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.frozen_features import FrozenFeatures
from ctvr.orchestrator.data.prefetch import num_prefetch_threads, prefetch
from ctvr.orchestrator.data.shuffle import index_batches, seed_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from ctvr.orchestrator.video.sampling import missing_frame


@dataclass(frozen=True)
class Queries:
    """Captions that are queries for the videos of one task."""

    tokens: Tensor  # (Q, L)
    target: Tensor  # (Q,) int64, index of the caption's own video within its task
    twin: Tensor  # (Q,) int64, index of the time-reversed twin within its task, -1 for none
    names: tuple[str, ...] = ()  # "<video id>#<caption index>", for the stored ranks
    task: int = 0  # task index with which the method encodes these captions and videos


class StreamData:
    """A stream as tensors: training batches, videos and queries.

    Args:
        stream: the stream.
        frames: source of frames.
        tokenize: the backbone's tokenizer, which maps captions to (N, L) int64.
        mean, std: the backbone's normalization, per channel.
        config: the settings `data.*`.
        device: device of the batches.
    """

    def __init__(
        self,
        stream: Stream,
        frames: FrameSource,
        tokenize: Callable[[list[str]], Tensor],
        mean: Sequence[float],
        std: Sequence[float],
        config: DataConfig,
        device: torch.device,
    ) -> None:
        self.stream, self.frames, self.config, self.device = stream, frames, config, device
        self.tokenizer, self._threads = tokenize, num_prefetch_threads(config.prefetch_threads, device)
        self._mean = torch.tensor(mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(std, device=device).view(3, 1, 1)
        self._index()
        self._features: FrozenFeatures | None = None
        self.others: dict[str, StreamData] = {}  # streams that are only evaluated, each as one task
        self._lengths: dict[int, int] | None = None  # task -> tokens of its longest caption, if captions are trimmed

    def _index(self) -> None:
        """Assign consecutive indices to the training videos and pairs."""
        items = [task.train for task in self.stream.method_tasks]
        videos = (item.video for task in items for item in task)
        self._numbers = {video: number for number, video in enumerate(dict.fromkeys(videos))}
        # A pair's number is its index among the pairs of all tasks
        self._all = [(item, caption) for task in items for item in task for caption in item.captions]
        counts = (sum(len(item.captions) for item in task) for task in items)
        self._first = list(accumulate(counts, initial=0))  # number of the first pair of each of the method's tasks

    def with_training_split(self, split: str) -> StreamData:
        """Return a copy with the pairs of a split as training pairs, without augmentation."""
        other, tasks = copy.copy(self), self.stream.tasks
        tasks = tuple(replace(task, train=self.stream.items(place, split)) for place, task in enumerate(tasks))
        plain = replace(self.config, augment="none", sampling=self.config.rule)
        other.stream, other.config = replace(self.stream, tasks=tasks), plain
        other._index()
        other._lengths = None if self._lengths is None else {}
        return other

    def trim_captions_per_task(self) -> StreamData:
        """Return a copy whose training captions are as long as their task's longest caption (`attends_to_padding`)."""
        other = copy.copy(self)
        other._lengths = {}
        return other

    def _width(self, tasks: Sequence[int]) -> int | None:
        """Return the width of the training captions of `tasks`; None for the tokenizer's width."""
        if self._lengths is None:
            return None
        for task in tasks:
            if task not in self._lengths:
                captions = [self._all[pair][1] for pair in self._pairs([task])]
                self._lengths[task] = trim_padding(self.tokens(captions)).shape[1]
        return max(self._lengths[task] for task in tasks)

    def with_features(self, features: FrozenFeatures | None) -> StreamData:
        """Return a copy with stored tokens (B, T, N, D) of a frozen tower instead of frames, unless augmented.

        If `features` is None, or with `data.cache_features=false`, videos are frames (B, T, 3, H, W).
        """
        other = copy.copy(self)
        other._features = features if self.config.cache_features else None
        other.others = {name: each.with_features(features) for name, each in self.others.items()}
        return other

    def task(self, index: int) -> Task:
        """Return the information on task `index` (0-based) that a method gets."""
        return task_of(self.stream, index, self.stream.method_tasks)

    def _pairs(self, tasks: Sequence[int]) -> list[int]:
        """Return the numbers of the training pairs of `tasks`, in order."""
        return [pair for task in tasks for pair in range(self._first[task], self._first[task + 1])]

    def num_pairs(self, tasks: Sequence[int]) -> int:
        return len(self._pairs(tasks))

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return frames (R, T, 3, H, W), or tokens of a frozen tower, and captions (R, L) of the given training pairs.

        Frames are not augmented.

        Args:
            numbers: values of `Batch.pair_ids`.
        """
        chosen = [self._all[number] for number in numbers]
        videos = self.to_batch(self._read([item for item, _ in chosen], is_augmented=False), None)
        tokens = self._pair_tokens(chosen, self._width(range(len(self.stream.method_tasks))))
        return videos.contiguous(), to_device(tokens, self.device)

    def _tasks(self, pairs: Sequence[int]) -> Tensor:
        """Return the tasks (N,) of training pairs with these numbers, on the CPU."""
        return torch.tensor([bisect_right(self._first, pair) - 1 for pair in pairs])

    def _number(self, item: Item) -> int:
        return self._numbers[item.video]

    def steps(self, tasks: Sequence[int], workers: int = 1) -> int:
        """Return the number of batches of an epoch; an estimate with `unique_videos`, which depends on the seed."""
        return len(self._batches(self._pairs(tasks), seed=0, size=self.config.batch_size, workers=workers))

    def batch_sizes(self, tasks: Sequence[int], seed: int, task: int, epoch: int, workers: int = 1) -> list[int]:
        """Return the global size (all workers) of each batch that `train_batches` yields for the same arguments."""
        return [len(batch) for batch in self._order(self._pairs(tasks), seed, task, epoch, workers)]

    def _order(self, pairs: list[int], seed: int, task: int, epoch: int, workers: int) -> list[list[int]]:
        return self._batches(pairs, seed_of(seed, "order", task, epoch), self.config.batch_size, workers)

    def _batches(self, pairs: list[int], seed: int, size: int, workers: int) -> list[list[int]]:
        batches = index_batches(
            [self._number(self._all[pair][0]) for pair in pairs],
            size,
            seed,
            self.config.unique_videos,
            self.config.caption_sampling == "random_per_video",
        )
        # Every worker needs the same number of pairs, so the remainder of the last batch is dropped
        cut = [batch[: len(batch) // workers * workers] for batch in batches]
        return [batch for batch in cut if batch]

    def train_batches(
        self, tasks: Sequence[int], seed: int, task: int, epoch: int, rank: int = 0, workers: int = 1
    ) -> Iterator[Batch]:
        """Yield one worker's batches of an epoch over the pairs of `tasks`; equal arguments give equal batches."""
        pairs = self._pairs(tasks)
        order = self._order(pairs, seed, task, epoch, workers)
        augment = torch.Generator(device=self.device).manual_seed(seed_of(seed, "augment", task, epoch, rank))
        own = []  # this worker's contiguous block of each batch, so that gathered rows are in the batch's order
        for batch in order:
            count = len(batch) // workers
            own.append(batch[rank * count : (rank + 1) * count])
        drawn = (seed, "frames", task, epoch) if self.config.sampling == "random" else None
        yield from self._make(pairs, own, augment, self._width(tasks), drawn)

    def ordered_batches(self, tasks: Sequence[int]) -> Iterator[Batch]:
        """Yield the training pairs once, in order, without augmentation."""
        pairs = self._pairs(tasks)
        size = self.config.batch_size
        order = [list(range(start, min(start + size, len(pairs)))) for start in range(0, len(pairs), size)]
        yield from self._make(pairs, order, None, self._width(tasks))

    def _make(
        self,
        pairs: list[int],
        order: list[list[int]],
        augment: torch.Generator | None,
        width: int | None,
        drawn: tuple[object, ...] | None = None,
    ) -> Iterator[Batch]:
        if self.config.augment == "none":
            augment = None
        is_mixed = len(self._tasks([pairs[0], pairs[-1]]).unique()) > 1 if pairs else False

        def read(batch: list[int]) -> tuple[list[int], list[tuple[Item, str]], Tensor, Tensor]:
            numbers = [pairs[index] for index in batch]
            chosen = [self._all[pair] for pair in numbers]
            videos = self._read([item for item, _ in chosen], augment is not None, drawn)
            return numbers, chosen, pinned(videos, self.device), self._pair_tokens(chosen, width)

        for numbers, chosen, videos, tokens in prefetch(read, order, self._threads):
            which = tuple(self._number(item) for item, _ in chosen)
            yield Batch(
                frames=self.to_batch(videos, augment),
                tokens=to_device(tokens, self.device),
                video_ids=to_device(which, self.device),
                categories=to_device([self.stream.category_index(item.category) for item, _ in chosen], self.device),
                pair_ids=to_device(numbers, self.device),
                unaugmented_video_ids=which if augment is None else None,
                task_ids=self._tasks(numbers) if is_mixed else None,
                answers=self._answers(numbers),
            )

    def _answers(self, numbers: Sequence[int]) -> Tensor | None:
        """Return the token ids (B, A) of the answers of training pairs; None unless this is a stream of questions."""
        return None

    def _pair_tokens(self, chosen: Sequence[tuple[Item, str]], width: int | None) -> Tensor:
        """Return tokens (B, L) on the CPU; L is `width`, or the length of the longest caption."""
        tokens = self.tokens([caption for _, caption in chosen])
        return trim_padding(tokens) if width is None else tokens[:, :width]

    def tokens(self, captions: list[str]) -> Tensor:
        """Return captions (N, L) int64, truncated to `data.max_tokens` with the end-of-text token kept."""
        return cut_tokens(self.tokenizer(captions), self.config.max_tokens)

    def _read(self, items: Sequence[Item], is_augmented: bool, drawn: tuple[object, ...] | None = None) -> Tensor:
        """Return raw frames (B, T, H, W, 3) uint8, or tokens (B, T, N, D) float, on the CPU.

        `drawn`: parts of the seed for a random choice of each video's frames; if None, the choice is not random.
        """
        features = self._features
        if drawn is not None:
            return stacked([self.frames.draw(item, seed_of(*drawn, item.video)) for item in items], self.device)
        if features is None or is_augmented:
            return stacked([self.frames.load(item) for item in items], self.device)
        return torch.stack([features.load(self.frames.key(item), partial(self.load_video, item)) for item in items])

    def load_video(self, item: Item) -> Tensor:
        """Return normalized frames (1, T, 3, H, W) of a video, on the device."""
        return self.to_batch(torch.from_numpy(np.array(self.frames.load(item)))[None], None)

    def to_batch(self, videos: Tensor, augment: torch.Generator | None = None) -> Tensor:
        """Move the result of `_read` to the device, and normalize frames to (B, T, 3, H, W); tokens are unchanged."""
        videos = to_device(videos, self.device)
        return self._normalise(videos, augment) if videos.dtype == torch.uint8 else videos

    def _normalise(self, raw: Tensor, augment: torch.Generator | None) -> Tensor:
        """Normalize (B, T, H, W, 3) uint8 to (B, T, 3, H, W) float; augment with a generator; missing frames are 0."""
        x = raw.permute(0, 1, 4, 2, 3).float() / 255
        if augment is not None and self.config.augment == "crop_flip":
            x = crop_and_flip(x, augment)
        elif augment is not None and self.config.augment == "gray_jitter":
            x = gray_and_jitter(x, augment)
        x = (x - self._mean) / self._std
        if self.config.sampling != "one_per_second":
            return x
        missing = to_device(torch.from_numpy(np.array(missing_frame(raw.shape[2]))), raw.device)
        return x.masked_fill((raw == missing).flatten(2).all(-1)[..., None, None, None], 0.0)

    def num_videos(self, task: int, split: str) -> int:
        return len(self.stream.items(task, split))

    def videos(self, task: int, split: str, rows: Sequence[int], batch_size: int) -> Iterator[Tensor]:
        """Yield normalized frames (B, T, 3, H, W), or tokens, of the chosen items of a task, in order."""
        items = self.stream.items(task, split)
        order = [list(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]

        def read(batch: list[int]) -> Tensor:
            return pinned(self._read([items[row] for row in batch], is_augmented=False), self.device)

        for videos in prefetch(read, order, self._threads):
            yield self.to_batch(videos, None)

    def queries(self, task: int, split: str) -> Queries:
        """Return the captions of a task's videos in a split as queries."""
        items = self.stream.items(task, split)
        place = {item.video: row for row, item in enumerate(items)}
        captions = [(row, number, text) for row, item in enumerate(items) for number, text in enumerate(item.captions)]
        twins = [place.get(items[row].twin or "", -1) for row, _, _ in captions]
        return Queries(
            tokens=self.tokens([text for _, _, text in captions]),
            target=torch.tensor([row for row, _, _ in captions]),
            twin=torch.tensor(twins),
            names=tuple(f"{items[row].video}#{number}" for row, number, _ in captions),
            task=self.stream.method_task(task),
        )


def cut_tokens(tokens: Tensor, longest: int | None) -> Tensor:
    """Truncate captions (N, L) to `longest` tokens, and end truncated captions with the end of text. Idempotent."""
    if longest is None or longest >= tokens.shape[1]:
        return tokens
    end = tokens.argmax(dim=1)  # the end of text has the largest id; only padding follows
    cut = tokens.clone()
    cut[:, longest:] = 0
    cut[:, longest - 1] = torch.where(end >= longest, tokens.amax(dim=1), cut[:, longest - 1])
    return cut


def task_of(stream: Stream, index: int, tasks: Sequence[StreamTask]) -> Task:
    """Return the information that a method gets on task `index` (0-based) of `Stream.tasks` or `.method_tasks`."""
    task = tasks[index]
    categories = tuple(stream.category_index(name) for name in task.categories)
    return Task(index, task.name, len(tasks), categories, len(stream.categories))


def tasks_of(stream: Stream) -> list[Task]:
    """Return the information on all tasks that a method gets."""
    return [task_of(stream, index, stream.method_tasks) for index in range(len(stream.method_tasks))]


def check_pairs(stream: Stream, config: DataConfig, workers: int) -> None:
    """Check that every task has a training pair for each worker, because batches are split evenly over all workers.

    Raises:
        ConfigError: for the first task with fewer pairs than workers.
    """
    if stream.domain == "images":
        return
    is_by_video = config.unique_videos or config.caption_sampling == "random_per_video"
    for task in stream.method_tasks:
        pairs = len(task.train) if is_by_video else sum(len(item.captions) for item in task.train)
        if pairs < workers:
            what = "training videos, of which a batch takes one caption each," if is_by_video else "training pairs"
            raise ConfigError(
                f"{task.name} of stream {stream.name} has {pairs} {what} for {workers} workers, so it would "
                "not be trained",
                "workers",
                remedy=f"Use at most {pairs} workers, or add training videos to the task.",
            )
