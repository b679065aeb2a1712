"""A memory of text-video pairs of former tasks, for replay.

Two policies. `ring` (Chaudhry et al., "tiny episodic memories", arXiv:1902.10486): every task has a place of
its own, in which it keeps a uniform sample of its pairs; the places of former tasks shrink as tasks arrive.
`reservoir` (Vitter 1985; DER, arXiv:2004.07211): one sample, uniform over all pairs so far.

The memory is written at the end of a task, so it never holds pairs of the task being learned. It is all
state (buffers), and equal on every worker, because all workers write with the same random numbers.
Frames are kept as 8-bit levels where that restores them bit for bit, which holds for whatever was decoded
from a video; otherwise as float16. A pair of 12 frames at 224 x 224 takes 1.8 MB: size the memory by that.

Shapes: B pairs, M pairs kept, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.base import Batch, Task

Policy = Literal["ring", "reservoir"]
_FIELDS = ("frames", "tokens", "videos", "categories", "tasks", "video_features", "text_features")


class ReplayMemory(nn.Module):
    """At most `capacity` pairs of former tasks.

    Args:
        capacity: pairs in total; 0 keeps nothing and draws no random number.
        policy: see above.
        quota: of `ring`: `dynamic` deals the capacity to the tasks so far, `static` to all of the stream.
        mean, std: what frames were normalised with, (3,) each; without them frames are kept as float16.
    """

    frames: Tensor  # (M, T, 3, H, W) uint8 levels or float16
    tokens: Tensor  # (M, L)
    videos: Tensor  # (M,)
    categories: Tensor  # (M,)
    tasks: Tensor  # (M,) index of the task each pair came from
    video_features: Tensor  # (M, d) as `write` got them, or (M, 0)
    text_features: Tensor  # (M, d)
    seen: Tensor  # () pairs offered so far

    def __init__(
        self,
        capacity: int,
        policy: Policy = "ring",
        quota: Literal["dynamic", "static"] = "dynamic",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if capacity < 0:
            raise ValueError(f"memory counts pairs and must be >= 0, got {capacity}. Use 0 for no replay.")
        self.capacity, self.policy, self.quota = capacity, policy, quota
        self.mean, self.std = mean, std
        for name in _FIELDS:
            self.register_buffer(name, torch.empty(0))
        self.register_buffer("seen", torch.tensor(0))

    def __len__(self) -> int:
        return len(self.videos)

    # -------------------------------------------------------------------------------------- reading

    def draw(self, count: int) -> Tensor:
        """Rows (count,) drawn uniformly, none twice unless fewer than `count` pairs are kept; none if empty."""
        if not len(self):
            return torch.empty(0, dtype=torch.int64, device=self.videos.device)
        rounds = [torch.randperm(len(self)) for _ in range(-(-count // len(self)))]
        return torch.cat(rounds or [torch.empty(0, dtype=torch.int64)])[:count].to(self.videos.device)

    def batch(self, rows: Tensor) -> Batch:
        """The pairs at `rows` as they were offered."""
        return Batch(self._unpack(self.frames[rows]), self.tokens[rows], self.videos[rows], self.categories[rows])

    # -------------------------------------------------------------------------------------- writing

    def observe(
        self, task: Task, loader: Iterable[Batch], features: Callable[[Batch], tuple[Tensor, Tensor]] | None = None
    ) -> Iterator[Batch]:
        """Yield the batches of `loader` and, once they are exhausted, keep a sample of their pairs.

        Args:
            task: the task that ends.
            loader: its pairs, each once.
            features: video and text features (B, d) to keep with a batch's pairs.
        """
        if not self.capacity:
            yield from loader
            return
        if self.policy == "ring":
            quotas = self._quotas(task)
            self._thin(quotas)
            first, room, offered = len(self), quotas[task.index], 0
        else:
            first, room, offered = 0, self.capacity, int(self.seen)
        fresh: dict[int, tuple[Tensor, ...]] = {}  # place -> fields of one pair
        for batch in loader:
            places = [reservoir_place(offered + row, room) for row in range(len(batch.videos))]
            offered += len(places)
            if any(place is not None for place in places):
                fields = self._fields(task, batch, features)
                for row, place in enumerate(places):
                    if place is not None:
                        fresh[first + place] = tuple(field[row].clone() for field in fields)
            self.seen += len(places)
            yield batch
        self._place(fresh)

    def write(
        self, task: Task, loader: Iterable[Batch], features: Callable[[Batch], tuple[Tensor, Tensor]] | None = None
    ) -> None:
        """`observe`, for a loader that nobody else reads."""
        for _ in self.observe(task, loader, features):
            pass

    def _fields(
        self, task: Task, batch: Batch, features: Callable[[Batch], tuple[Tensor, Tensor]] | None
    ) -> tuple[Tensor, ...]:
        """A batch in the form and order of `_FIELDS`."""
        none = batch.frames.new_empty(len(batch.videos), 0)
        with torch.no_grad():
            kept = features(batch) if features is not None else (none, none)
        tasks = torch.full_like(batch.videos, task.index)
        return self._pack(batch.frames), batch.tokens, batch.videos, batch.categories, tasks, *kept

    def _quotas(self, task: Task) -> list[int]:
        """Pairs that each task so far may keep; their sum is at most the capacity."""
        shares = task.num_tasks if self.quota == "static" else task.index + 1
        return [self.capacity // shares + (i < self.capacity % shares) for i in range(task.index + 1)]

    def _thin(self, quotas: Sequence[int]) -> None:
        """Shrink every task to a uniform sample of its quota."""
        if not len(self):
            return
        kept = []
        for index, quota in enumerate(quotas):
            rows = (self.tasks == index).nonzero()[:, 0]
            chosen = torch.randperm(len(rows))[:quota].sort().values
            kept.append(rows[chosen.to(rows.device)])
        rows = torch.cat(kept)
        for name in _FIELDS:
            setattr(self, name, getattr(self, name)[rows])

    def _place(self, fresh: dict[int, tuple[Tensor, ...]]) -> None:
        """Overwrite the places that exist and append the others."""
        if not fresh:
            return
        places = sorted(fresh)
        for number, name in enumerate(_FIELDS):
            values = [fresh[place][number] for place in places]
            if name == "frames" and len({value.dtype for value in values}) > 1:
                values = [self._half(value) for value in values]
            new, old = _stack(values), getattr(self, name)
            if not len(old):
                old = new[:0]
            if name == "frames" and old.dtype != new.dtype:
                old, new = self._half(old), self._half(new)
            if name == "tokens":
                old, new = (F.pad(x, (0, max(old.shape[1], new.shape[1]) - x.shape[1])) for x in (old, new))
            whole = torch.cat([old, new[len([place for place in places if place < len(old)]) :]])
            whole[torch.tensor(places, device=whole.device)] = new
            setattr(self, name, whole)

    # ------------------------------------------------------------------------------------- packing

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(x, device=like.device)[:, None, None] for x in (self.mean, self.std))
        return mean, std

    def _pack(self, frames: Tensor) -> Tensor:
        if self.mean is not None and self.std is not None:
            mean, std = self._scale(frames)
            levels = ((frames * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
            if torch.equal(self._unpack(levels), frames.float()):
                return levels
        return frames.half()

    def _unpack(self, stored: Tensor) -> Tensor:
        if stored.dtype != torch.uint8:
            return stored.float()
        mean, std = self._scale(stored)
        return (stored.float() / 255 - mean) / std

    def _half(self, stored: Tensor) -> Tensor:
        return self._unpack(stored).half()


def reservoir_place(offered: int, room: int) -> int | None:
    """Where the pair number `offered` (0-based) goes among `room` places; None = it is not kept.

    After N pairs each has been kept with probability room / N.
    """
    if offered < room:
        return offered
    place = int(torch.randint(offered + 1, ()))
    return place if place < room else None


def _stack(values: Sequence[Tensor]) -> Tensor:
    """Rows as one tensor; captions (L,) of different lengths are padded with zeros."""
    if values[0].ndim == 1 and not values[0].is_floating_point():
        longest = max(len(value) for value in values)
        values = [F.pad(value, (0, longest - len(value))) for value in values]
    return torch.stack(list(values))


def join(first: Batch, second: Batch) -> Batch:
    """The pairs of both, `first` before `second`; captions are padded with zeros to one length."""
    longest = max(first.tokens.shape[1], second.tokens.shape[1])
    tokens = [F.pad(batch.tokens, (0, longest - batch.tokens.shape[1])) for batch in (first, second)]
    return Batch(
        torch.cat([first.frames, second.frames]),
        torch.cat(tokens),
        torch.cat([first.videos, second.videos]),
        torch.cat([first.categories, second.categories]),
    )
