"""Base class of strategies that map caption features to the feature space of the older model that encoded a video.

This file is not a method. The model after task k encodes the videos of task k, which are never encoded again. After
each later task j a map g_j, called a link, is fitted to the training captions of task j. It maps their features by the
model after task j to their features by the model before task j. A caption feature q_t by the model after task t then
searches the videos of task k as

    q^(k) = g_{k+1}( .. g_t(q_t)), normalized after each link;   q^(t) = q_t

This needs neither videos nor captions of previous tasks, and does not change stored galleries. The weights of links are
buffers, so links do not add trained parameters. If the retriever conditions captions on the searched task, a link has a
map for each previous task, fitted to captions that are conditioned on that task.

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
    """Base class of R maps from unit features by a model to those by its predecessor; a new map is the identity."""

    identity: Tensor  # (R,) bool, maps that return features unchanged, bit-identical

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("identity", torch.ones(rows, dtype=torch.bool))

    @torch.no_grad()
    def fit(self, row: int, new: Tensor, old: Tensor) -> None:
        """Fit a map to unit features of captions; if `new` equals `old`, the map is the identity.

        Args:
            row: index of the map.
            new: (n, d) features by the newer model.
            old: (n, d) features of these captions by the older model.
        """
        is_same = torch.equal(new, old)
        self.identity[row] = is_same
        if not is_same:
            self._fit(row, new, old)

    def _fit(self, row: int, new: Tensor, old: Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor, row: int) -> Tensor:
        """Apply map `row` to unit features (B, d). The result is not normalized."""
        raise NotImplementedError


class FeatureMap(Protocol):
    """Interface of a kind of map; its functions take the weights, so that a link can store several sets of weights."""

    def start(self, width: int) -> Weights:
        """Return weights with which the map is the identity on features of width `width`."""
        ...

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        """Map features x: (B, d) -> (B, d)."""
        ...

    def fit(self, x: Tensor, y: Tensor) -> Weights:
        """Fit a map from x (n, d) to y (n, d), and return its float32 weights on the device of x."""
        ...


class MapLink(Link):
    """Link of R maps of one kind, whose weights are buffers (R, ...)."""

    def __init__(self, kind: FeatureMap, width: int, rows: int, pairs: int) -> None:
        """Build R maps.

        Args:
            kind: kind of map.
            width: width d of a caption's feature.
            rows: number R of maps.
            pairs: maximum number of pairs of features to which a map is fitted.
        """
        super().__init__(rows)
        self.kind, self.pairs = kind, pairs
        start = kind.start(width)
        self.names = tuple(start)
        for name, value in start.items():
            self.register_buffer(name, value.repeat(rows, *[1] * value.ndim))

    def _fit(self, row: int, new: Tensor, old: Tensor) -> None:
        step = -(-len(new) // self.pairs)  # the selected pairs are spread over the task
        self.fit_map(row, new[::step].float(), old[::step].float())

    def fit_map(self, row: int, x: Tensor, y: Tensor) -> None:
        """Fit map `row` from x (n, d) to y (n, d)."""
        for name, value in self.kind.fit(x, y).items():
            getattr(self, name)[row] = value

    def forward(self, x: Tensor, row: int) -> Tensor:
        return self.kind.apply({name: getattr(self, name)[row] for name in self.names}, x)


class QueryCompensation(Strategy):
    """Base class of strategies that map captions to the model of a gallery by the links of all tasks after it."""

    EPOCH_STATE = ("_taught",)

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
                "the strategy adapts captions to older videos, but this retriever never changes features of videos",
                write="base.side=both",
            )
        if known.several_text_vectors:
            raise SettingError(
                "the strategy maps one vector per caption, but this retriever has several", write="<base>=clip4clip"
            )

    def __init__(self, config: Any, base: Method) -> None:
        super().__init__(config, base)
        self.links = nn.ModuleList()  # self.links[j - 1] is g_j, fitted after the task with index j
        self.teacher: Frozen | None = None  # the model before the current task, until the task's link is fitted
        self.index = 0  # index of the current task
        self._taught = VideoFeatureCache()  # features of videos by the teacher
        self.text_passes = 0 if base.declared.task_conditioned_text else 1

    def make_link(self, width: int, rows: int) -> Link:
        """Return an untrained link: `rows` maps, each from features of width `width` to features of the same width."""
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
        """Return the width d of a caption's feature, measured by encoding a caption of one word.

        Raises:
            ValueError: if the feature of a caption is not one vector.
        """
        held = next(chain(self.base.parameters(), self.base.buffers()), torch.empty(0))
        shape = teacher("encode_text", torch.tensor([[1, 2]], device=held.device)).shape
        if len(shape) != 2:
            raise SettingError(
                f"<base>: {type(self.base).__name__} encodes a caption as a tensor of shape {tuple(shape[1:])}, but "
                "the strategy maps one vector",
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
        for _ in batches:  # read the batches that the retriever has not read
            pass
        self.fit_link(self.links[-1], captions)
        self.teacher = None

    @torch.no_grad()
    def fit_link(self, link: Any, captions: Sequence[Tensor]) -> None:
        """Fit all maps of the current task's link to captions, given as the tokens (B, L) of each batch.

        At the end of a task every worker gets all pairs of the task, so features need not be gathered.
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
        """Return the links from the current model to the model after task `block`, the newest link first."""
        return [self.links[j - 1] for j in range(self.index, block, -1)]  # type: ignore[misc]

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions (B, L) to search the videos of `task`: (B, d), with the norms of the retriever's features."""
        feature = self.base.encode_text(tokens, task)
        return feature if task is None else self.move_text(feature, task)

    def encode_text_once(self, tokens: Tensor) -> Tensor:
        return self.base.encode_text(tokens)

    def move_text(self, features: Tensor, task: int) -> Tensor:
        """Map caption features (B, d) of the retriever to the space of the model that encoded the videos of `task`."""
        links = [] if self.gallery_is_fresh else self.links_to(task)
        if not links:
            return features
        with torch.autocast(features.device.type, enabled=False):
            feature = features.float()
            moved = self.move(l2_normalize(feature), links, task) * feature.norm(dim=-1, keepdim=True)
            still = torch.stack([link.identity[row_of(link, task)] for link in links]).all()
            return torch.where(still, feature, moved)

    def move(self, x: Tensor, links: Sequence[Link], block: int) -> Tensor:
        """Apply links to unit features (B, d), in order, and normalize after each; `block` is the searched task."""
        for link in links:
            x = l2_normalize(link(x, row_of(link, block)))
        return x

    # ------------------------------------------------------------------------------------- losses

    def distilled(self, batch: Batch, query_weight: float, video_weight: float) -> dict[str, Tensor]:
        """Return the retriever's loss terms, plus the mean of 1 - cos between features by the old and the new model.

        Args:
            batch: batch of the current task.
            query_weight: weight of the loss on captions; 0 omits it.
            video_weight: weight of the loss on videos; 0 omits it.
        """
        if self.teacher is None or not (query_weight or video_weight):
            return super().losses(batch)
        encoded = EncodedOnce(self.base, batch)
        terms = encoded.losses()
        if query_weight:
            terms["query_distillation"] = query_weight * _mean_distance(
                encoded.texts(), self.teacher("encode_text", batch.tokens)
            )
        if video_weight:
            old = self._taught.of(batch, partial(self.teacher, "encode_video"))
            terms["video_distillation"] = video_weight * _mean_distance(encoded.videos(), old)
        return terms


def row_of(link: Link, block: int) -> int:
    """Return the index of the map in `link` with which captions search the videos of task `block`."""
    return min(block, len(link.identity) - 1)


def _mean_distance(new: Tensor, old: Tensor) -> Tensor:
    """Compute the mean of 1 - cos, a scalar, between rows of the features `new` and `old`, (.., d) each."""
    return (1 - F.cosine_similarity(new.float(), old.float(), dim=-1)).mean()


def _keep_captions(loader: Iterable[Batch], captions: list[Tensor]) -> Iterator[Batch]:
    for batch in loader:
        captions.append(batch.tokens)
        yield batch
