"""Base class of strategies that keep an old index usable: captions move back to the model that stored the videos.

This file is not a method. The videos of task k are stored by the model after task k and are never encoded again. After
each later task j a link g_j is fitted from caption features of the model after task j to those of the model before it,
on the training captions of task j, which both models encode. A caption of the model after task t then searches the
videos of task k as

    q^(k) = g_{k+1}( .. g_t(q_t)),   unit after each link; k = t: q_t itself

No video or caption of a former task is needed, and stored galleries stay as they are. A link is kept in buffers, so it
adds no trained parameter. Where the retriever conditions captions on the searched task, a link has a map for each task
before it, fitted on captions that are conditioned on that task.

Shapes: n pairs of features, B captions, L text length, d width of a caption's feature, R maps of a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, Capabilities, Frozen, Method, Task, l2_normalize
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.feature_maps import Weights
from ctvr.methods.layers.losses.distillation import EncodedOnce
from ctvr.methods.layers.replay.cache import VideoFeatureCache
from ctvr.methods.settings import SettingError


class Link(nn.Module):
    """R maps of unit features (B, d) of one model to those of the model before it, all the identity at first."""

    identity: Tensor  # (R,) bool, the maps that change nothing, to the bit

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("identity", torch.ones(rows, dtype=torch.bool))

    @torch.no_grad()
    def fit(self, row: int, new: Tensor, old: Tensor) -> None:
        """Fit map `row` to unit features new -> old (n, d) of the same captions; equal features leave the identity."""
        is_same = torch.equal(new, old)
        self.identity[row] = is_same
        if not is_same:
            self._fit(row, new, old)

    def _fit(self, row: int, new: Tensor, old: Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor, row: int) -> Tensor:
        """Map unit features (B, d) by map `row`; the result has no fixed length."""
        raise NotImplementedError


class FeatureMap(Protocol):
    """A kind of map with its settings. Its weights are tensors by name, so that a link can keep several."""

    def start(self, width: int) -> Weights:
        """Return weights with which the map is the identity on features of `width` numbers."""
        ...

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        """Map features (B, d)."""
        ...

    def fit(self, x: Tensor, y: Tensor) -> Weights:
        """Return weights fitted to x -> y (n, d), float32 on their device."""
        ...


class MapLink(Link):
    """Maps of one kind; their weights are buffers (R, ...)."""

    def __init__(self, kind: FeatureMap, width: int, rows: int, pairs: int) -> None:
        """Take the kind of map, d, R, and the maximum number of pairs to which a map is fitted."""
        super().__init__(rows)
        self.kind, self.pairs = kind, pairs
        start = kind.start(width)
        self.names = tuple(start)
        for name, value in start.items():
            self.register_buffer(name, value.repeat(rows, *[1] * value.ndim))

    def _fit(self, row: int, new: Tensor, old: Tensor) -> None:
        step = -(-len(new) // self.pairs)  # from the whole task
        self.fit_map(row, new[::step].float(), old[::step].float())

    def fit_map(self, row: int, x: Tensor, y: Tensor) -> None:
        """Fit map `row` to the chosen pairs x -> y (n, d)."""
        for name, value in self.kind.fit(x, y).items():
            getattr(self, name)[row] = value

    def forward(self, x: Tensor, row: int) -> Tensor:
        return self.kind.apply({name: getattr(self, name)[row] for name in self.names}, x)


class QueryCompensation(Strategy):
    """A strategy whose captions search an older gallery through the links of the tasks since it was stored."""

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        return Capabilities(
            backbone_agnostic=True, uses_all_parameters=True, task_conditioned_text=True, compensates_age=True
        )

    @classmethod
    def check_base(cls, config: Any, base: type[Method], base_config: Any) -> None:
        super().check_base(config, base, base_config)
        known = base.capabilities(base_config)
        if known.videos_are_frozen:
            raise SettingError(
                "the strategy adapts captions to an older index, but the retriever never changes a stored video",
                write="base.side=both",
            )
        if known.several_text_vectors:
            raise SettingError(
                "the strategy maps the one vector of a caption, but the retriever has several", write="<base>=clip4clip"
            )

    def __init__(self, config: Any, base: Method) -> None:
        super().__init__(config, base)
        self.links = nn.ModuleList()  # g_1, g_2, ..: g_j is self.links[j - 1], of the task with index j
        self.teacher: Frozen | None = None  # the model before the current task, until its link is fitted
        self.index = 0  # of the current task
        self._taught = VideoFeatureCache()  # the teacher's features of videos
        self.text_passes = 0 if base.declared.task_conditioned_text else 1

    def make_link(self, width: int, rows: int) -> Link:
        """Return a new link of `rows` maps of features with `width` numbers."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------- the stream

    def begin_task(self, task: Task) -> None:
        self.index, self.teacher, self._taught = task.index, None, VideoFeatureCache()
        if task.index > 0:
            self.teacher = Frozen(self.base)
            rows = task.index if self.base.declared.task_conditioned_text else 1
            self.links.append(self.make_link(self._width(self.teacher), rows))
        super().begin_task(task)

    def _width(self, teacher: Frozen) -> int:
        """Return d, the width of the feature of a caption of one word.

        Raises:
            ValueError: if the feature is not one vector.
        """
        held = next(chain(self.base.parameters(), self.base.buffers()), torch.empty(0))
        shape = teacher("encode_text", torch.tensor([[1, 2]], device=held.device)).shape
        if len(shape) != 2:
            raise SettingError(
                f"<base>: {type(self.base).__name__} encodes a caption as {tuple(shape[1:])} numbers, but the "
                "strategy maps one vector",
                write="<base>=clip4clip",
            )
        return shape[1]

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        if self.teacher is None:
            super().end_task(task, loader)
            return
        captions: list[Tensor] = []
        batches = _keep_captions(loader, captions)
        super().end_task(task, batches)
        for _ in batches:  # batches that the retriever has not read
            pass
        self.fit_link(self.links[-1], captions)
        self.teacher = None

    @torch.no_grad()
    def fit_link(self, link: Any, captions: Sequence[Tensor]) -> None:
        """Fit every map of the current task's link to captions (B, L), one tensor for each batch.

        Every worker sees all pairs of the task at its end, so nothing is gathered.
        """
        assert self.teacher is not None
        is_by_task = self.base.declared.task_conditioned_text
        for row in range(len(link.identity)):
            block = row if is_by_task else None
            new = [l2_normalize(self.base.encode_text(tokens, block)) for tokens in captions]
            old = [l2_normalize(self.teacher("encode_text", tokens, block)) for tokens in captions]
            link.fit(row, torch.cat(new), torch.cat(old))

    # ---------------------------------------------------------------------------------- searching

    def links_to(self, block: int) -> list[Link]:
        """Return the links between the current model and the videos of task `block`, the newest first."""
        return [self.links[j - 1] for j in range(self.index, block, -1)]  # type: ignore[misc]

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions (B, L) for the stored videos of `task`: (B, d), as long as the retriever's own features."""
        feature = self.base.encode_text(tokens, task)
        return feature if task is None else self.move_text(feature, task)

    def encode_text_once(self, tokens: Tensor) -> Tensor:
        return self.base.encode_text(tokens)

    def move_text(self, features: Tensor, task: int) -> Tensor:
        """Move the retriever's features (B, d) of captions to the model that stored the videos of `task`."""
        links = [] if self.gallery_is_fresh else self.links_to(task)
        if not links:
            return features
        with torch.autocast(features.device.type, enabled=False):
            feature = features.float()
            moved = self.move(l2_normalize(feature), links, task) * feature.norm(dim=-1, keepdim=True)
            still = torch.stack([link.identity[row_of(link, task)] for link in links]).all()
            return torch.where(still, feature, moved)

    def move(self, x: Tensor, links: Sequence[Link], block: int) -> Tensor:
        """Move unit features (B, d) through the links to the space of task `block`."""
        for link in links:
            x = l2_normalize(link(x, row_of(link, block)))
        return x

    # ------------------------------------------------------------------------------------- losses

    def distilled(self, batch: Batch, query_weight: float, video_weight: float) -> dict[str, Tensor]:
        """Return the retriever's losses, and the means of 1 - cos between old and new captions and between old and new
        videos.

        Args:
            batch: batch of the current task.
            query_weight, video_weight: weights of the two means; 0 leaves a term out.
        """
        if self.teacher is None or not (query_weight or video_weight):
            return super().losses(batch)
        encoded = EncodedOnce(self.base, batch)
        terms = encoded.losses()
        if query_weight:
            terms["query_distillation"] = query_weight * _apart(
                encoded.texts(), self.teacher("encode_text", batch.tokens)
            )
        if video_weight:
            old = self._taught.of(batch, partial(self.teacher, "encode_video"))
            terms["video_distillation"] = video_weight * _apart(encoded.videos(), old)
        return terms


def row_of(link: Link, block: int) -> int:
    """Return the index of a link's map for the videos of task `block`."""
    return min(block, len(link.identity) - 1)


def _apart(new: Tensor, old: Tensor) -> Tensor:
    """Compute the mean of 1 - cos over features (.., d), a scalar."""
    return (1 - F.cosine_similarity(new.float(), old.float(), dim=-1)).mean()


def _keep_captions(loader: Iterable[Batch], captions: list[Tensor]) -> Iterator[Batch]:
    for batch in loader:
        captions.append(batch.tokens)
        yield batch
