"""Replay buffer of text-video pairs of previous tasks.

There are two policies. `ring` (Chaudhry et al., "tiny episodic memories", arXiv:1902.10486) stores a uniform sample of
each task's pairs; the samples of previous tasks shrink with every new task. `reservoir` (Vitter 1985; DER,
arXiv:2004.07211) stores one sample that is uniform over all pairs so far. If a share is given instead of a capacity,
the buffer stores a uniform sample of that share of every task's pairs.

The buffer is written at the end of a task, so it never contains pairs of the current task. It stores the ids of pairs,
and features that cannot be computed again. Frames and captions are read from the source at replay: worker 0 draws rows
for all workers, and each worker reads its part. The stored fields are buffers of the module. They are equal on every
worker, because all workers write with the same random numbers.

Shapes: B pairs, M stored pairs, R sampled rows, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, PairSource, Task
from ctvr.methods.layers.gather import deal, world_size
from ctvr.methods.layers.transfer import to_device
from ctvr.methods.settings import SettingError

Policy = Literal["ring", "reservoir"]
_FIELDS = ("pairs", "videos", "categories", "tasks", "video_features", "text_features")


class ReplayBuffer(nn.Module):
    """Buffer of at most `capacity` pairs of previous tasks.

    Args:
        capacity: maximum number of pairs; 0 stores nothing and does not draw random numbers.
        policy: `ring` or `reservoir`; the module's docstring describes them.
        quota: tasks among which `ring` divides the capacity: the tasks so far (`dynamic`), or all tasks of the stream
            (`static`).
        share: share in (0, 1] of each task's pairs to store, at least one; if given, the other arguments are ignored.

    Attributes:
        source: provides frames and captions of pairs by their ids.
    """

    pairs: Tensor  # (M,) pair ids, see `Batch.pair_ids`
    videos: Tensor  # (M,) video ids
    categories: Tensor  # (M,) category indices
    tasks: Tensor  # (M,) index of the task of each pair
    video_features: Tensor  # (M, d), or (M, 0) if `write` gets no features
    text_features: Tensor  # (M, d), or (M, 0)
    seen: Tensor  # () number of pairs offered so far

    def __init__(
        self,
        capacity: int,
        policy: Policy = "ring",
        quota: Literal["dynamic", "static"] = "dynamic",
        share: float | None = None,
    ) -> None:
        super().__init__()
        if capacity < 0:
            raise SettingError(f"<buffer_size> must be >= 0, got {capacity}", "Use 0 for no replay.")
        self.capacity, self.policy, self.quota, self.share = capacity, policy, quota, share
        self.source: PairSource | None = None
        self._known: tuple[list[tuple[Tensor, int]], Tensor, Tensor] | None = None
        for name in _FIELDS:
            self.register_buffer(name, torch.empty(0))
        self.register_buffer("seen", torch.tensor(0))

    def __len__(self) -> int:
        return len(self.videos)

    # -------------------------------------------------------------------------------------- reading

    def sample(self, count: int | Sequence[int]) -> Tensor:
        """Draw R indices of stored pairs for this worker, uniformly: (R,) int64 on the CPU; none from an empty buffer.

        Worker 0 draws for all workers. An index is not repeated in a step, unless all workers together request more
        pairs than the buffer contains.

        Args:
            count: R, equal for all workers, or a list with the R of each worker.
        """
        if not len(self):
            return torch.empty(0, dtype=torch.int64)
        sizes = [count] * world_size() if isinstance(count, int) else count
        of_all = sum(sizes)
        rounds = [torch.randperm(len(self)) for _ in range(-(-of_all // len(self)))]
        drawn = torch.cat(rounds or [torch.empty(0, dtype=torch.int64)])[:of_all]
        return deal(drawn, sizes)

    def features(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored video and text features (R, d) of the pairs with indices `rows` (R,) on the CPU."""
        own = to_device(rows, self.videos.device)
        return self.video_features[own], self.text_features[own]

    def _on_host(self) -> tuple[Tensor, Tensor]:
        """Return `pairs` and `tasks` on the CPU; they are cached, so that not every step waits for the GPU."""
        now, known = (self.pairs, self.tasks), self._known
        if known is None or any(x is not y or x._version != n for x, (y, n) in zip(now, known[0])):
            pairs, tasks = torch.stack(now).cpu()
            known = self._known = [(x, x._version) for x in now], pairs, tasks
        return known[1:]

    def batch(self, rows: Tensor) -> Batch:
        """Read stored pairs from the source; `rows` (R,), on the CPU, has their indices in the buffer.

        Raises:
            ValueError: if no source is set.
        """
        if self.source is None:
            raise ValueError("the replay buffer has no source to read pairs from. Call set_pair_source() first.")
        pairs, tasks = self._on_host()
        frames, tokens = self.source.pairs(pairs[rows].tolist())
        own = to_device(rows, self.videos.device)
        return Batch(frames, tokens, self.videos[own], self.categories[own], self.pairs[own], tasks[rows])

    # -------------------------------------------------------------------------------------- writing

    def observe(
        self, task: Task, loader: Iterable[Batch], features: Callable[[Batch], tuple[Tensor, Tensor]] | None = None
    ) -> Iterator[Batch]:
        """Yield the batches of `loader`, and after the last one store a sample of their pairs.

        Args:
            task: the task that ends.
            loader: batches that contain each pair of the task once.
            features: batch -> video and text features (B, d), which are stored with the pairs; if None, none are.

        Raises:
            ValueError: if a batch lacks pair ids.
        """
        if not (self.capacity or self.share):
            yield from loader
            return
        if self.share:  # the number of pairs is not known before the end of the loader
            first, room, offered = len(self), sys.maxsize, 0
        elif self.policy == "ring":
            quotas = self._quotas(task)
            self._thin(quotas)
            first, room, offered = len(self), quotas[task.index], 0
        else:
            first, room, offered = 0, self.capacity, int(self.seen)
        fresh: dict[int, tuple[Tensor, ...]] = {}  # slot -> fields of one pair
        for batch in loader:
            places = [reservoir_index(offered + row, room) for row in range(len(batch.video_ids))]
            offered += len(places)
            if any(place is not None for place in places):
                fields = self._fields(task, batch, features)
                for row, place in enumerate(places):
                    if place is not None:
                        fresh[first + place] = tuple(field[row].clone() for field in fields)
            self.seen += len(places)
            yield batch
        self._place(fresh)
        if self.share:
            former = torch.bincount(self._on_host()[1], minlength=task.index + 1)[: task.index].tolist()
            self._thin([*former, max(1, round(self.share * offered))])

    def write(
        self, task: Task, loader: Iterable[Batch], features: Callable[[Batch], tuple[Tensor, Tensor]] | None = None
    ) -> None:
        """Store a sample of the pairs of `loader` as `observe` does, without yielding its batches."""
        for _ in self.observe(task, loader, features):
            pass

    def _fields(
        self, task: Task, batch: Batch, features: Callable[[Batch], tuple[Tensor, Tensor]] | None
    ) -> tuple[Tensor, ...]:
        """Return the fields of a batch in the order of `_FIELDS`."""
        if batch.pair_ids is None:
            raise ValueError("the replay buffer stores pair ids, which this batch lacks. Set Batch.pair_ids.")
        none = torch.empty(len(batch.video_ids), 0, device=batch.video_ids.device)
        with torch.no_grad():
            kept = features(batch) if features is not None else (none, none)
        tasks = torch.full_like(batch.video_ids, task.index)
        return batch.pair_ids, batch.video_ids, batch.categories, tasks, *kept

    def _quotas(self, task: Task) -> list[int]:
        """Return the maximum number of stored pairs of each task so far; their sum is at most the capacity."""
        shares = task.num_tasks if self.quota == "static" else task.index + 1
        return [self.capacity // shares + (i < self.capacity % shares) for i in range(task.index + 1)]

    def _thin(self, quotas: Sequence[int]) -> None:
        """Reduce the stored pairs of each task to a uniform sample whose size is at most the task's quota."""
        if not len(self):
            return
        kept, (_, tasks) = [], self._on_host()
        for index, quota in enumerate(quotas):
            rows = (tasks == index).nonzero()[:, 0]
            kept.append(rows[torch.randperm(len(rows))[:quota].sort().values])
        rows = to_device(torch.cat(kept), self.tasks.device)
        for name in _FIELDS:
            setattr(self, name, getattr(self, name)[rows])

    def _place(self, fresh: dict[int, tuple[Tensor, ...]]) -> None:
        """Write pairs (slot -> values of `_FIELDS`) into the fields: overwrite existing slots, and append new ones."""
        if not fresh:
            return
        places = sorted(fresh)
        where = to_device(places, self.tasks.device)
        for number, name in enumerate(_FIELDS):
            new, old = torch.stack([fresh[place][number] for place in places]), getattr(self, name)
            if not len(old):
                old = new[:0]
            whole = torch.cat([old, new[len([place for place in places if place < len(old)]) :]])
            whole[where] = new
            setattr(self, name, whole)


def reservoir_index(offered: int, room: int) -> int | None:
    """Draw the slot in which reservoir sampling stores a pair, out of `room` slots; None if it does not store the pair.

    After N >= `room` pairs, each of them is stored with probability room / N.

    Args:
        offered: number of pairs that were offered before.
        room: number of slots.
    """
    if offered < room:
        return offered
    place = int(torch.randint(offered + 1, ()))
    return place if place < room else None


def join(first: Batch, second: Batch, task: int) -> Batch:
    """Concatenate two batches, `first` before `second`; captions are padded with zeros to equal length.

    Args:
        first: pairs of the current task.
        second: pairs from a replay buffer.
        task: index of the current task.
    """
    longest = max(first.tokens.shape[1], second.tokens.shape[1])
    tokens = [F.pad(batch.tokens, (0, longest - batch.tokens.shape[1])) for batch in (first, second)]
    present = torch.full((len(first.video_ids),), task)
    return Batch(
        torch.cat([first.frames, second.frames]),
        torch.cat(tokens),
        torch.cat([first.video_ids, second.video_ids]),
        torch.cat([first.categories, second.categories]),
        task_ids=present if second.task_ids is None else torch.cat([present, second.task_ids]),
    )
