"""Retriever whose backbone is replaced within a stream, while the index keeps the features of the old model.

This file is not a method. An old model A was trained on the tasks before task u and encoded their videos for the index.
From task u on, a new model B is trained and encodes videos. Videos encoded by A are not encoded again. The captions c
of all tasks search both parts of the index by one of three options, where f_A and f_B are the models' text encoders:

    both   f_A(c) searches the videos of A, and f_B(c) those of B; a caption is encoded twice
    map    p(f_B(c)) searches the videos of A, and f_B(c) those of B; a caption is encoded once; the map p is fitted
           after each task of B to the training captions of that task
    new    f_B(c) searches all videos: a baseline without a map, which suffices if A and B have the same feature space

    p(x) = length unit((unit(x) - mean X) W + mean Y)

Rows of X and Y are unit features of the captions by B and A, and length is the mean norm of features by A. W is
orthogonal (Procrustes, as in Drift-Adapter, arXiv:2509.23471) or linear, the projection of XBT (arXiv:2405.14715) in
closed form. The widths of A and B may differ.

The similarities of two models have different scales. Each similarity s is therefore replaced by a z-score:

    z(s) = (s - m) / sd

m and sd are the mean and standard deviation of a model's similarities between captions and videos of different pairs.
They are measured on training pairs of the model's last task: task u - 1 for A, the newest task for B. Neither searched
videos nor test captions are used. A caption in the space of A uses m and sd of A, any other caption those of B. The
z-score does not change the ranking within one part of the index. The feature of a caption has two additional elements,
1 / sd and -m / sd, which `score` applies.

Tasks of A have negative indices here: the first task of B is 0, and the task before it is -1.

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
MAX_PAIRS = 1024  # maximum number of training pairs from which m and sd are measured


class Upgraded(Strategy):
    """New model, which is trained, with the old model, which is used only to search the videos that it encoded."""

    scales: Tensor  # (2, 2): 1 / sd and -m / sd of the old and the new model
    matrix: Tensor  # W (d of B, d of A)
    mean_new: Tensor  # mean X, (d of B,)
    mean_old: Tensor  # mean Y, (d of A,)
    length: Tensor  # () mean norm of features by A
    old_pairs: Callable[[], Iterable[Batch]]  # training pairs of the last task of A, preprocessed for A

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
        """Wrap the two models.

        Args:
            base: the new model B.
            old: the old model A.
            learned: number of tasks that A learned.
            translate: token ids (B, L) of B -> token ids (B, L) of A.
            queries: how captions search the videos of A; the module's docstring describes the options.
            kind: kind of the map p.
            probe: two tensors (1, L), a caption tokenized for B and for A, from which feature widths are measured.
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
        """Return the new model's capabilities, changed because captions depend on the searched part of the index."""
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
        for _ in batches:  # read the batches that the retriever has not read
            pass
        tokens, pairs, videos = zip(*seen)
        with torch.no_grad():
            if self.queries == "map":
                self._fit(tokens)
            self.scales[NEW] = self._scale(self.base, task.index, self._read(torch.cat(pairs), torch.cat(videos)))

    @torch.no_grad()
    def measure_old(self, loader: Iterable[Batch]) -> None:
        """Measure m and sd of the old model on training pairs of its last task (`loader`), preprocessed for it."""
        self.scales[OLD] = self._scale(self.old, self.learned - 1, ((b.frames, b.tokens, b.video_ids) for b in loader))

    def _read(self, pairs: Tensor, videos: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield frames, tokens and video ids of at most `MAX_PAIRS` pairs of a task, evenly spaced in its order.

        Args:
            pairs: (n,) pair ids of the task.
            videos: (n,) video ids of these pairs.
        """
        step = -(-len(pairs) // MAX_PAIRS)
        for some, which in zip(pairs[::step].split(32), videos[::step].split(32)):
            yield *self._source.pairs(some.tolist()), which

    @staticmethod
    def _scale(model: Method, task: int, pairs: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Return 1 / sd and -m / sd, (2,), of the similarities between captions and videos with different video ids.

        Args:
            model: model that encodes captions and videos.
            task: index of the pairs' task as the model counts tasks.
            pairs: frames, tokens and video ids of each batch.
        """
        found = [
            (model.encode_text(tokens, task).float(), model.encode_video_for_task(frames, task).float(), numbers)
            for frames, tokens, numbers in pairs
        ]
        captions, videos, numbers = (torch.cat(part) for part in zip(*found))
        step = -(-len(captions) // MAX_PAIRS)
        captions, videos, numbers = captions[::step], videos[::step], numbers[::step]
        others = model.score(captions, videos).double()[numbers[:, None] != numbers]
        sd, mean = torch.std_mean(others)
        return torch.stack([1 / sd, -mean / sd]).float()

    def _fit(self, captions: Iterable[Tensor]) -> None:
        """Fit the map p to the training captions of a task, given as the tokens (B, L) of each batch."""
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
        """Encode videos with the new model; for tasks of the old model (index below 0), as videos of task 0."""
        return self.base.encode_video_for_task(frames, max(task, 0))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions (B, L) -> (B, d + 2) to search the videos of `task`; None: those of the new model."""
        if task is None:
            return self._append_scale(self.base.encode_text(tokens), NEW)
        self.base.gallery_is_fresh = self.gallery_is_fresh
        by_old = self._model_of(task) == OLD
        if by_old and self.queries == "both":
            return self._append_scale(self.old.encode_text(self.translate(tokens), task + self.learned), OLD)
        feature = self.base.encode_text(tokens, max(task, 0))
        return self._append_scale(self._to_old(feature), OLD) if by_old else self._append_scale(feature, NEW)

    def encode_text_once(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return two features (B, d) of captions, to search the videos of the new model and those of the old model."""
        new = self.base.encode_text(tokens)
        if self.queries == "new":
            return new, new
        return new, self.old.encode_text(self.translate(tokens)) if self.queries == "both" else self._to_old(new)

    def move_text(self, features: Any, task: int) -> Tensor:
        model = self._model_of(task)
        return self._append_scale(features[1 - model], model)

    def _model_of(self, task: int) -> int:
        """Return OLD or NEW, the model in whose feature space captions search the videos of `task`."""
        return OLD if task < 0 and not self.gallery_is_fresh and self.queries != "new" else NEW

    def _to_old(self, feature: Tensor) -> Tensor:
        """Map caption features (B, d) of the new model by p to the space of the old model; the width d may change."""
        with torch.autocast(feature.device.type, enabled=False):
            x = l2_normalize(feature) - self.mean_new
            return self.length * l2_normalize(x @ self.matrix + self.mean_old)

    def _append_scale(self, feature: Tensor, model: int) -> Tensor:
        return torch.cat([feature.float(), self.scales[model].expand(len(feature), 2)], dim=-1)

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Return z-scores (B, V) of the similarities of captions (B, d + 2) and videos (V, d or more).

        Only the first d elements are compared.
        """
        width = queries.shape[-1] - 2
        similarity = self.base.score(queries[:, :width], gallery[:, :width])
        return similarity * queries[:, width : width + 1] + queries[:, width + 1 :]


def _keep(loader: Iterable[Batch], seen: list[tuple[Tensor, Tensor, Tensor]]) -> Iterator[Batch]:
    for batch in loader:
        assert batch.pair_ids is not None  # the training loop sets them
        seen.append((batch.tokens, batch.pair_ids, batch.video_ids))
        yield batch
