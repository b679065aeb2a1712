"""Labeled images without captions: one array per class and split; a training batch has two views and the plain image.

An item of such a stream (`Stream.domain`) names a .npy file (N, S, S, 3) uint8. Images are not copied into the store,
because one object for each of 50,000 images would be too many. Arrays are memory-mapped from their files.

Shapes: B images of a batch, S pixels per side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctvr.methods.base import Batch
from ctvr.methods.images.views import normalise, view
from ctvr.methods.layers.transfer import to_device
from ctvr.orchestrator.data.array_files import load_npy
from ctvr.orchestrator.data.batches import Queries, StreamData, index_batches
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import ArraySource
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream

LEAST = 8  # pixels per side, minimum for a ResNet-18
LARGEST = 1024


class ImageSource(ArraySource):
    """Arrays of images, read from their files.

    Raises:
        ConfigError: for settings that apply to videos only.
    """

    def __init__(self, stream: Stream, store: Store, config: DataConfig) -> None:
        plain = {
            "augment": "none",
            "sampling": "segments",
            "image_size": None,
            "max_tokens": None,
            "jpeg_quality": None,
        }
        super().__init__(stream, store, config, "images", plain)
        self._arrays: dict[str, np.ndarray] = {}

    def _key(self, item: Item, file: Any) -> str:
        return digest_of({"images": file})

    def load(self, item: Item) -> np.ndarray:
        """Return all images of an item, (N, S, S, 3) uint8, read-only.

        Raises:
            VideoError: if the file is not a uint8 array of this shape.
        """
        if item.path not in self._arrays:
            self._arrays[item.path] = _read(item.path)
        return self._arrays[item.path]


def _read(path: str) -> np.ndarray:
    found = load_npy(path, mapped=True)
    if found.ndim != 4 or found.dtype != np.uint8 or not len(found):
        raise VideoError(path, "images must be an array (N, S, S, 3) of uint8")
    if found.shape[1] != found.shape[2] or found.shape[3] != 3 or not LEAST <= found.shape[1] <= LARGEST:
        raise VideoError(path, f"images have shape {found.shape[1:]}, not (S, S, 3) with S of {LEAST} to {LARGEST}")
    return found


class ImageData(StreamData):
    """A stream of images as tensors. `Batch.frames` are (B, 3, 3, S, S): two views and the plain image in [0, 1].

    Args:
        stream: stream whose items are arrays.
        frames: source of the arrays.
        config: the settings `data.*`.
        device: device of the batches.

    Raises:
        ConfigError: if images of the stream differ in size.
    """

    frames: ImageSource

    def __init__(self, stream: Stream, frames: ImageSource, config: DataConfig, device: torch.device) -> None:
        super().__init__(stream, frames, _no_captions, (0.0,) * 3, (1.0,) * 3, config, device)
        tasks = [stream.items(index, "train") for index in range(len(stream.tasks))]
        sizes = {frames.load(item).shape[1]: item for task in tasks for item in task}
        if len(sizes) > 1:
            (one, first), (two, second) = list(sizes.items())[:2]
            raise ConfigError(
                f"stream {stream.name}: images of {first.video} have {one} pixels per side, but those of "
                f"{second.video} have {two}. Use one size for all images."
            )
        self._rows = [(item, row) for task in tasks for item in task for row in range(len(frames.load(item)))]
        counts = (sum(len(frames.load(item)) for item in task) for task in tasks)
        self._first = list(accumulate(counts, initial=0))

    def _batches(self, pairs: list[int], seed: int, size: int, workers: int) -> list[list[int]]:
        """Return shuffled batches, the last of which may be smaller, as in the authors' code."""
        return index_batches(pairs, size, seed)

    def train_batches(
        self, tasks: Sequence[int], seed: int, task: int, epoch: int, rank: int = 0, workers: int = 1
    ) -> Iterator[Batch]:
        """Yield the batches of one epoch; views use torch's global RNG, which the loop has seeded."""
        pairs = self._pairs(tasks)
        for batch in self._order(pairs, seed, task, epoch, workers):
            numbers = [pairs[index] for index in batch]
            plain = self._plain(numbers)
            views = [normalise(view(plain)) for _ in range(2)]
            yield self._batch(numbers, torch.stack([*views, plain], dim=1))

    def ordered_batches(self, tasks: Sequence[int]) -> Iterator[Batch]:
        """Yield the training images once, in order: (B, 1, 3, S, S), normalized and not augmented."""
        pairs, size = self._pairs(tasks), self.config.batch_size
        for start in range(0, len(pairs), size):
            numbers = pairs[start : start + size]
            yield self._batch(numbers, normalise(self._plain(numbers))[:, None])

    def _plain(self, numbers: Sequence[int]) -> Tensor:
        rows = [self._rows[number] for number in numbers]
        return self._unit(np.stack([self.frames.load(item)[row] for item, row in rows]))

    def _unit(self, images: np.ndarray) -> Tensor:
        """Convert (B, S, S, 3) uint8 to (B, 3, S, S) in [0, 1] on the device."""
        return to_device(torch.from_numpy(images), self.device).permute(0, 3, 1, 2).float() / 255

    def _batch(self, numbers: list[int], frames: Tensor) -> Batch:
        categories = [self.stream.category_index(self._rows[number][0].category) for number in numbers]
        which, none = to_device(numbers, self.device), torch.zeros(len(numbers), 0, dtype=torch.int64)
        return Batch(frames, to_device(none, self.device), which, to_device(categories, self.device), which)

    def num_videos(self, task: int, split: str) -> int:
        """Return the number of images of a task in a split."""
        return sum(len(self.frames.load(item)) for item in self.stream.items(task, split))

    def labels(self, task: int, split: str) -> Tensor:
        """Return (N,) int64: the index of each image's class among the classes of the task."""
        place = {name: index for index, name in enumerate(self.stream.tasks[task].categories)}
        items = self.stream.items(task, split)
        return torch.cat([torch.full((len(self.frames.load(item)),), place[item.category]) for item in items])

    def videos(self, task: int, split: str, rows: Sequence[int], batch_size: int) -> Iterator[Tensor]:
        """Yield normalized images (B, 1, 3, S, S) of a task, in order."""
        every = [(item, row) for item in self.stream.items(task, split) for row in range(len(self.frames.load(item)))]
        for start in range(0, len(rows), batch_size):
            chosen = [every[row] for row in rows[start : start + batch_size]]
            yield normalise(self._unit(np.stack([self.frames.load(item)[row] for item, row in chosen])))[:, None]

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return training images (R, 1, 3, S, S), normalized and not augmented, with empty captions (R, 0)."""
        return normalise(self._plain(numbers))[:, None], torch.zeros(len(numbers), 0, dtype=torch.int64)

    def queries(self, task: int, split: str) -> Queries:
        raise ConfigError(f"stream {self.stream.name}: images have no captions to search with. Use a stream of videos.")


def _no_captions(texts: list[str]) -> Tensor:
    raise ConfigError("images have no captions to tokenize", remedy="Use a stream of videos.")
