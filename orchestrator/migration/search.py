"""Search of queries in an index by every way to switch embedders, in one pass over blocks of items.

A way (a strategy) has a name, such as "stay" or ("map index", "mlp"), and scores a block of items. Scores within TIE of
each other are equal, because the rounding of a product depends on the block; a tie is weighted by its probability
(`Positions`).

Shapes: Q queries, N items, B items of a block, d dimensions of the old embedder, d' of the new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ctvr.orchestrator.learning.evaluation.ranking import Positions
from ctvr.orchestrator.migration.maps import FeatureMap

BLOCK = 2048  # items
TIE = 1e-6
KS = (1, 5, 10)
NEIGHBOURS = 10
Way = tuple[str, str]  # name, and kind of the map or order and share of re-encoding
Product = Callable[[Tensor, Tensor], Tensor]
STAY, BOTH, ALL = ("stay", ""), ("both", ""), ("re-encode", "100")


@dataclass(frozen=True)
class Index:
    """The measured items: rows of the two sets, which are read block by block."""

    old: Tensor
    new: Tensor
    rows: tuple[Tensor, Tensor]  # (N,) of each set

    def __len__(self) -> int:
        return len(self.rows[0])

    def block(self, part: slice | Tensor) -> tuple[Tensor, Tensor]:
        return self.old[self.rows[0][part]], self.new[self.rows[1][part]]


@dataclass(frozen=True)
class Measured:
    """The queries and the ways by which they search.

    Attributes:
        new: (Q, d') by the new embedder.
        old: (Q, d) by the old embedder; if None, "stay" and "both" are not measured.
        target: (Q,) int64, the item that a caption describes, or the item that is the query; -1 for none.
        group: (Q,) int64; queries of one group are not independent samples.
        has_targets: captions have a target. Otherwise the new embedder's nearest neighbors are the reference.
        query_maps, index_maps: maps new -> old and old -> new by kind.
        spread: (2, Q) standard deviations of a query's similarities to old and new vectors.
        first: re-encoded items (N,) of each order and share: (order, share) -> bool.
        rest: kind of the index map for items that are not re-encoded.
    """

    new: Tensor
    old: Tensor | None
    target: Tensor
    group: Tensor
    has_targets: bool
    query_maps: dict[str, FeatureMap] = field(default_factory=dict)
    index_maps: dict[str, FeatureMap] = field(default_factory=dict)
    rest: str = ""
    spread: Tensor = field(default_factory=lambda: torch.ones(2, 0))
    first: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def scores(
        self, old: Tensor, new: Tensor, masks: dict[tuple[str, int], Tensor], product: Product
    ) -> Iterator[tuple[Way, Tensor]]:
        """Yield the scores of each way to switch embedders.

        Args:
            old, new: vectors of the items, (B, d) and (B, d').
            masks: re-encoded items, which broadcast to the scores.
            product: queries and items -> scores.
        """
        fresh = product(self.new, new)
        yield ALL, fresh
        if self.old is not None:
            stored = product(self.old, old)
            yield STAY, stored
            of_old, of_new = self.spread[:, :, None]
            yield BOTH, (of_new * stored + of_old * fresh) / (of_old + of_new)  # the order of summed z-scores
        for kind, each in self.query_maps.items():
            yield ("map queries", kind), product(each.apply(self.new), old)
        mapped = fresh
        for kind, each in self.index_maps.items():
            scores = product(self.new, each.apply(old))
            yield ("map index", kind), scores
            mapped = scores if kind == self.rest else mapped
        for (order, share), mask in masks.items():
            yield (order, str(share)), torch.where(mask, fresh, mapped)


def measure(index: Index, queries: Measured) -> dict[Way, Tensor]:
    """Return the search results of each way to switch embedders for each query.

    Returns:
        with targets: P(rank <= k) (Q, 3) for k of KS. Otherwise (Q, 1): the share of the new embedder's ten nearest
        items that are among the ten that the way returns.
    """
    return (_recall if queries.has_targets else _overlap)(index, queries)


def _parts(total: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, total)) for start in range(0, total, BLOCK))


def _recall(index: Index, queries: Measured) -> dict[Way, Tensor]:
    at = queries.target
    own = dict(
        queries.scores(
            *index.block(at),
            {key: mask[at, None] for key, mask in queries.first.items()},
            lambda q, v: (q * v).sum(dim=-1, keepdim=True),
        )
    )
    counts = {way: torch.zeros(2, len(at), dtype=torch.int64) for way in own}
    for _, way, scores in _blocks(index, queries):
        above = (scores > own[way] + TIE).sum(dim=1)
        counts[way] += torch.stack([above, (scores >= own[way] - TIE).sum(dim=1) - above])
    found = {}
    for way, (better, equal) in counts.items():
        positions = Positions(better.double(), equal.double(), torch.ones(len(at), dtype=torch.float64))
        found[way] = torch.stack([positions.chance(k) for k in KS], dim=1)
    return found


def _overlap(index: Index, queries: Measured) -> dict[Way, Tensor]:
    nearest: dict[Way, tuple[Tensor, Tensor]] = {}
    for part, way, scores in _blocks(index, queries):
        nearest[way] = merge_nearest(nearest.get(way), scores, part.start)
    wanted = nearest[ALL][1]
    found = {}
    for way, (_, items) in nearest.items():
        is_found = (items[:, :, None] == wanted[:, None, :]).any(dim=1)
        found[way] = is_found.double().mean(dim=1, keepdim=True)
    return found


def _blocks(index: Index, queries: Measured) -> Iterator[tuple[slice, Way, Tensor]]:
    """Yield the scores (Q, B) of each block and way; a query's own item has -inf."""
    for part in _parts(len(index)):
        inside = ((queries.target >= part.start) & (queries.target < part.stop)).nonzero()[:, 0]
        columns = queries.target[inside] - part.start
        masks = {key: mask[None, part] for key, mask in queries.first.items()}
        for way, scores in queries.scores(*index.block(part), masks, lambda q, v: q @ v.mT):
            kept = scores[inside, columns]
            scores[inside, columns] = -torch.inf
            yield part, way, scores
            scores[inside, columns] = kept  # other ways read it


def merge_nearest(known: tuple[Tensor, Tensor] | None, scores: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Return values and item indices (Q, 10) of the highest scores, from `known` and a block of scores (Q, B).

    The block begins at item `start`. If there are fewer than 10 scores of a query, all are returned.
    """
    values, items = scores.topk(min(NEIGHBOURS, scores.shape[1]), dim=1)
    items = items + start
    if known is not None:
        values, items = torch.cat([known[0], values], dim=1), torch.cat([known[1], items], dim=1)
        values, places = values.topk(min(NEIGHBOURS, values.shape[1]), dim=1)
        items = items.gather(1, places)
    return values, items


def count_hits(queries: Tensor, index: Index) -> Tensor:
    """Count how often each item (N,) is among the ten nearest old vectors of queries (P, d)."""
    nearest = None
    for part in _parts(len(index)):
        nearest = merge_nearest(nearest, queries @ index.block(part)[0].mT, part.start)
    assert nearest is not None  # an index has items
    return torch.bincount(nearest[1].flatten(), minlength=len(index))


def predicted_loss(index: Index, known: Tensor, losses: Tensor, neighbours: int = 10) -> Tensor:
    """Predict the loss (N,) of mapping each item, from its old vector alone: the mean loss of the nearest known items.

    Args:
        known: old vectors (K, d) of items to which the map was not fitted.
        losses: (K,) losses of these items.
    """
    found = []
    for part in _parts(len(index)):
        near = (index.block(part)[0] @ known.mT).topk(min(neighbours, len(known)), dim=1).indices
        found.append(losses[near].mean(dim=1))
    return torch.cat(found)


def first_items(order: Tensor, shares: Sequence[int]) -> dict[int, Tensor]:
    """Return a mask (N,) of the first share (percent, rounded down) of an order (N,) of items, for each share."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return {share: place < len(order) * share // 100 for share in shares}
