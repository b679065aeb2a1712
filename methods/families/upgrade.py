"""A retriever whose backbone is replaced within a stream, while the index keeps the features of the former model.

This file is not a method. The tasks before task u were learned and stored by a model A; from task u on a new model B
learns and stores. No video of A is encoded again. The captions c of all tasks search both parts of the index:

    both   A's videos by f_A(c), B's by f_B(c): two passes of a caption
    map    A's videos by p(f_B(c)), B's by f_B(c): one pass; p is fitted after each task of B, on its training captions
    new    all videos by f_B(c): one pass; a baseline without a map, or for models that share a space

    p(x) = length unit((unit(x) - mean X) W + mean Y),   rows of X, Y: unit features by B and A; length: mean of A's

W is orthogonal (Procrustes, as in Drift-Adapter, arXiv:2509.23471) or linear, the projection of XBT (arXiv:2405.14715)
in closed form. The widths of A and B may differ.

Similarities of two models are not on one scale. Each is therefore replaced by a z-score:

    z(s) = (s - m) / sd

m and sd are the mean and the standard deviation of a model's similarities of captions and videos that do not belong
together, among the training pairs of the last task that the model has learned: task u - 1 for A, the newest for B. No
searched video and no test caption is read for it. A mapped caption has A's m and sd, an unmapped one B's. The scale of
a part changes no rank within it. A caption's feature carries its part's 1 / sd and -m / sd as two more numbers, which
`score` applies.

Tasks of A have negative indices here: B's first task is 0, and the task before it -1.

Shapes: n pairs or captions, B captions, V videos, L text length, d width of a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Capabilities, Method, PairSource, Task, l2_normalize
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.feature_maps import procrustes, ridge_map

OLD, NEW = 0, 1  # rows of `Upgraded.scales`
MOST = 1024  # training pairs that are compared for a scale


class Upgraded(Strategy):
    """The new model, with the old one for the videos that it stored."""

    scales: Tensor  # (2, 2): 1 / sd and -m / sd of the old and the new model
    matrix: Tensor  # W (d of B, d of A)
    mean_new: Tensor  # (d of B,)
    mean_old: Tensor  # (d of A,)
    length: Tensor  # ()
    old_pairs: Callable[[], Iterable[Batch]]  # training pairs of the old model's last task, as it reads them

    def __init__(
        self,
        base: Method,
        old: Method,
        learned: int,
        translate: Callable[[Tensor], Tensor],
        queries: Literal["both", "map", "new"],
        kind: Literal["procrustes", "linear"],
        probe: tuple[Tensor, Tensor],
    ) -> None:
        """Take the new and the old model, the old one's number of tasks, new tokens -> old ones (B, L), settings, a
        caption (1, L) for each model.
        """
        super().__init__(None, base)
        self.old = old.requires_grad_(False).eval()
        self.learned, self.translate, self.queries, self.kind = learned, translate, queries, kind
        self.text_passes = 2 if queries == "both" else 1
        if base.declared.task_conditioned_text or old.declared.task_conditioned_text:
            self.text_passes = 0
        self.register_buffer("scales", torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        if queries == "map":
            with torch.no_grad():
                new, former = base.encode_text(probe[0]), old.encode_text(probe[1])
            self.register_buffer("matrix", torch.eye(new.shape[-1], former.shape[-1]))
            self.register_buffer("mean_new", torch.zeros(new.shape[-1]))
            self.register_buffer("mean_old", torch.zeros(former.shape[-1]))
            self.register_buffer("length", torch.ones(()))

    @cached_property
    def declared(self) -> Capabilities:
        """Return the facts of the new model; captions depend on the searched part of the index."""
        return replace(self.base.declared, task_conditioned_text=True, compensates_age=True, text_is_frozen=False)

    def train(self, mode: bool = True) -> Upgraded:
        super().train(mode)
        self.old.eval()
        return self

    def set_pair_source(self, source: PairSource) -> None:
        super().set_pair_source(source)
        self._source = source

    # ---------------------------------------------------------------------------------- the stream

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        batches = _keep(loader, seen)
        super().end_task(task, batches)
        for _ in batches:  # batches that the retriever has not read
            pass
        tokens, pairs, videos = zip(*seen)
        with torch.no_grad():
            if self.queries == "map":
                self._fit(tokens)
            self.scales[NEW] = self._scale(self.base, task.index, self._read(torch.cat(pairs), torch.cat(videos)))

    @torch.no_grad()
    def measure_old(self, loader: Iterable[Batch]) -> None:
        """Measure the scale of the old model on the training pairs of its last task, as it reads them itself."""
        self.scales[OLD] = self._scale(self.old, self.learned - 1, ((b.frames, b.tokens, b.video_ids) for b in loader))

    def _read(self, pairs: Tensor, videos: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield frames, tokens and numbers of videos of at most `MOST` of the pairs (n,), spread over the task."""
        step = -(-len(pairs) // MOST)
        for some, which in zip(pairs[::step].split(32), videos[::step].split(32)):
            yield *self._source.pairs(some.tolist()), which

    @staticmethod
    def _scale(model: Method, task: int, pairs: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Return 1 / sd and -m / sd (2,) of the similarities of a model's captions and other videos."""
        found = [
            (model.encode_text(tokens, task).float(), model.encode_video_for_task(frames, task).float(), numbers)
            for frames, tokens, numbers in pairs
        ]
        captions, videos, numbers = (torch.cat(part) for part in zip(*found))
        step = -(-len(captions) // MOST)
        captions, videos, numbers = captions[::step], videos[::step], numbers[::step]
        others = model.score(captions, videos).double()[numbers[:, None] != numbers]
        sd, mean = torch.std_mean(others)
        return torch.stack([1 / sd, -mean / sd]).float()

    def _fit(self, captions: Iterable[Tensor]) -> None:
        """Fit p to the training captions (B, L) of a task, one tensor for each batch."""
        new, old = [], []
        for tokens in captions:
            new.append(self.base.encode_text(tokens, 0).float())
            old.append(self.old.encode_text(self.translate(tokens), self.learned - 1).float())
        x, y = l2_normalize(torch.cat(new)), torch.cat(old)
        self.length.copy_(y.norm(dim=-1).mean())
        y = l2_normalize(y)
        self.mean_new.copy_(x.mean(dim=0))
        self.mean_old.copy_(y.mean(dim=0))
        fit = procrustes if self.kind == "procrustes" else ridge_map
        self.matrix.copy_(fit(x - self.mean_new, y - self.mean_old))

    # ---------------------------------------------------------------------------------- searching

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode videos with the new model; videos of a former model's task are encoded as those of its first task."""
        return self.base.encode_video_for_task(frames, max(task, 0))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions (B, L) -> (B, d + 2) for the stored videos of `task`; None: for the new model's videos."""
        if task is None:
            return self._scaled(self.base.encode_text(tokens), NEW)
        self.base.gallery_is_fresh = self.gallery_is_fresh
        by_old = self._part(task) == OLD
        if by_old and self.queries == "both":
            return self._scaled(self.old.encode_text(self.translate(tokens), task + self.learned), OLD)
        feature = self.base.encode_text(tokens, max(task, 0))
        return self._scaled(self._to_old(feature), OLD) if by_old else self._scaled(feature, NEW)

    def encode_text_once(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, d) of captions for the new model's videos, and for the old one's."""
        new = self.base.encode_text(tokens)
        if self.queries == "new":
            return new, new
        return new, self.old.encode_text(self.translate(tokens)) if self.queries == "both" else self._to_old(new)

    def move_text(self, features: Any, task: int) -> Tensor:
        part = self._part(task)
        return self._scaled(features[1 - part], part)

    def _part(self, task: int) -> int:
        """Return the model in whose space captions search the videos of `task`."""
        return OLD if task < 0 and not self.gallery_is_fresh and self.queries != "new" else NEW

    def _to_old(self, feature: Tensor) -> Tensor:
        """Map features (B, d) of the new model's captions to the old model, by p."""
        with torch.autocast(feature.device.type, enabled=False):
            x = l2_normalize(feature) - self.mean_new
            return self.length * l2_normalize(x @ self.matrix + self.mean_old)

    def _scaled(self, feature: Tensor, part: int) -> Tensor:
        return torch.cat([feature.float(), self.scales[part].expand(len(feature), 2)], dim=-1)

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Return z-scores (B, V) of captions (B, d + 2) and videos, whose elements after the first d are zero."""
        width = queries.shape[-1] - 2
        similarity = self.base.score(queries[:, :width], gallery[:, :width])
        return similarity * queries[:, width : width + 1] + queries[:, width + 1 :]


def _keep(loader: Iterable[Batch], seen: list[tuple[Tensor, Tensor, Tensor]]) -> Iterator[Batch]:
    for batch in loader:
        assert batch.pair_ids is not None  # the loop numbers its pairs
        seen.append((batch.tokens, batch.pair_ids, batch.video_ids))
        yield batch
