"""Ranks in both directions in one pass over tiles of scores, and top-k search in a large gallery.

Equal scores are treated as randomly ordered. The counts of better and of equal scores are kept, from which
`Positions.chance` computes P(rank <= k) and `Positions.rank` the mean rank. NaN is the worst score and ties with NaN,
so that a diverged model ranks at chance. The score of each caption and its own video is read first, from the tile that
contains it. Then every tile adds to the counts of its captions and of its videos. Tiles are scored on demand, so the
matrix (Q, V) need not exist.

Protocol: CTVR (arXiv:2503.10111, section 3) and CVLM (BMU-MoCo, section 4). Shapes: Q captions, V videos, V' videos
that have a caption, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ctvr.methods.layers.transfer import to_device
from ctvr.orchestrator.streams.query_rank import Rank

# Scores (R, C) of some captions (a slice or an index of rows) and of some videos (a slice), in any floating type
Score = Callable[[slice | Tensor, slice], Tensor]
TILE = 1024  # videos per tile
SCATTERS = ("cpu",)  # devices with `scatter_reduce`: on CUDA torch calls it nondeterministic, even for maxima
KEPT = 2**25  # bytes of tiles that are kept after their first use, so that small matrices are scored only once


@dataclass(frozen=True)
class Positions:
    """Positions of N queries' matches: counts (N,) in float64 of the candidates around each query's best match."""

    better: Tensor  # number of candidates with a higher score than the best match
    equal: Tensor  # number of candidates with the score of the best match that are not matches
    own: Tensor  # number of matches with the score of the best match, at least 1

    def __len__(self) -> int:
        return len(self.better)

    def __getitem__(self, part: slice | Tensor) -> Positions:
        return Positions(self.better[part], self.equal[part], self.own[part])

    @property
    def rank(self) -> Tensor:
        """Return 1 + better + equal / 2, (N,): 1 is best, and a tie counts half."""
        return 1 + self.better + self.equal / 2

    def chance(self, k: int) -> Tensor:
        """Return P(rank <= k) (N,) of the first match, if candidates of equal scores are ordered at random.

        With j = k - better positions left, it is 1 - C(equal, j) / C(own + equal, j): the hypergeometric probability
        that one of the first j of own + equal is a match. With one match, it is j / (1 + equal), within 0 and 1.
        """
        left, missed = k - self.better, torch.ones_like(self.better)
        for place in range(k):  # probability that a candidate that is not a match takes the next place
            share = (self.equal - place).clamp(min=0) / (self.own + self.equal - place).clamp(min=1)
            missed = torch.where(place < left, missed * share, missed)
        single = (left / (1 + self.equal)).clamp(0, 1)
        return torch.where(self.own == 1, single, 1 - missed)

    @classmethod
    def joined(cls, parts: Sequence[Positions]) -> Positions:
        """Concatenate the positions of several sets of queries."""
        return cls(*(torch.cat(columns) for columns in zip(*((x.better, x.equal, x.own) for x in parts))))

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> Positions:
        """Return the positions of queries from the result of `listed`."""
        return cls(*torch.tensor(ranks, dtype=torch.float64).view(-1, 3).unbind(dim=1))

    def listed(self) -> list[Rank]:
        """Return the positions as one `Rank` for each query."""
        columns = (column.long().tolist() for column in (self.better, self.equal, self.own))
        return [Rank(*counts) for counts in zip(*columns)]


@dataclass(frozen=True)
class Ranked:
    """Positions of captions and of captioned videos, each in the order of their tasks."""

    to_videos: Positions  # (Q,) of a caption's own video among all videos
    own: Positions  # (Q,) of a caption's own video among the videos of the caption's task
    captioned: Tensor  # (V',) int64, columns of captioned videos
    # (V',) of a video among all captioned videos, each scored by its best caption, as in CLIP4Clip, X-Pool
    # and CTVR (except for ties: the released code ranks the own captions first)
    videos: Positions
    own_videos: Positions  # (V',) like `videos`, but among the captioned videos of the video's task
    captions: Positions  # (V',) of a video's best own captions among all captions of other videos
    beats_twin: Tensor  # (Q,) 1 where a caption scores its video above its twin, 1/2 where equal, NaN without a twin


def score_reader(scores: Tensor) -> Score:
    """Return a `Score` that reads precomputed scores (Q, V)."""
    return lambda rows, columns: scores[rows, columns]


def rank(
    score: Score,
    target: Tensor,
    rows: Sequence[int],
    columns: Sequence[int],
    twin: Tensor | None = None,
    chunk: int = 512,
) -> Ranked:
    """Rank captions among videos and videos among captions.

    Args:
        score: must return bit-identical scores on every call.
        target: (Q,) int64 column of each caption's video, which belongs to the caption's task; on the CPU.
        rows: T + 1 offsets of the tasks' captions, from 0 to Q.
        columns: T + 1 offsets of the tasks' videos, from 0 to V.
        twin: (Q,) int64 column of the time-reversed twin; -1 if there is none.
        chunk: captions per tile.
    """
    order, twin = target.argsort(stable=True), torch.full_like(target, -1) if twin is None else twin
    if not torch.equal(order, torch.arange(len(target))):  # captions of a video must be adjacent
        ordered = rank(
            lambda part, videos: score(order[part], videos), target[order], rows, columns, twin[order], chunk
        )
        back = order.argsort()
        captions = {name: getattr(ordered, name)[back] for name in ("to_videos", "own", "beats_twin")}
        return Ranked(**{**vars(ordered), **captions})
    captioned, group = target.unique_consecutive(return_inverse=True)
    if not len(target):
        nothing = torch.zeros(0, dtype=torch.float64)
        none = Positions(nothing, nothing, nothing)
        return Ranked(none, none, captioned, none, none, none, nothing)
    tiles = _Tiles(score, rows, columns, chunk)
    own = _picked(tiles, target)
    other = _picked(tiles, torch.where(twin >= 0, twin, target)) if bool((twin >= 0).any()) else own
    best = own.new_full((columns[-1],), -math.inf)
    best[to_device(captioned, own.device)] = _Groups(group, own.device).maxima(own)
    place = to_device(target, own.device)
    beats = ((own > other).double() + (own >= other).double()) / 2
    counts, beats, is_best = _on_cpu(_count(tiles, own, best, group), beats, own == best[place])
    equals = torch.bincount(group[is_best.bool()]).double()  # own captions as good as the best one
    return Ranked(
        to_videos=_positions(counts.captions),
        own=_positions(counts.own_captions),
        captioned=captioned,
        videos=_positions(counts.groups[:, captioned]),
        own_videos=_positions(counts.own_groups[:, captioned]),
        captions=_positions(counts.all_captions[:, captioned], equals),
        beats_twin=torch.where(twin >= 0, beats, math.nan),
    )


def _positions(counts: Tensor, own: Tensor | None = None) -> Positions:
    """Return the positions from counts (2, N) of better scores and of scores that are not worse, with the own score."""
    better, not_worse = counts
    own = torch.ones_like(better) if own is None else own
    return Positions(better, not_worse - better - own, own)


def topk(score: Score, queries: int, columns: Sequence[int], k: int, chunk: int = 512) -> tuple[Tensor, Tensor]:
    """Return the k best videos of each caption, best first, lowest column first among equals; tile by tile.

    Args:
        score: returns the scores of a tile.
        queries: Q, number of captions.
        columns: offsets of blocks of videos, from 0 to V.
        k: number of videos per caption, >= 1; at most V are returned.
        chunk: captions per tile.

    Returns:
        Scores (Q, k) and columns (Q, k) int64, on the CPU.
    """
    values, places = [], []
    tiles = _Tiles(score, (0, queries), columns, chunk)
    for r in range(len(tiles.rows)):
        best: tuple[Tensor, Tensor] | None = None
        for c, (_, part) in enumerate(tiles.columns):
            tile = tiles(r, c)
            place = torch.arange(part.start, part.stop, device=tile.device).expand(len(tile), -1)
            if best is not None:  # earlier candidates come first, so they win ties
                tile, place = torch.cat([best[0], tile], dim=1), torch.cat([best[1], place], dim=1)
            tile, order = tile.sort(dim=1, descending=True, stable=True)
            best = tile[:, :k].clone(), place.gather(1, order[:, :k])
        if best is not None:
            values.append(best[0].cpu())
            places.append(best[1].cpu())
    if not values:
        return torch.zeros(queries, 0), torch.zeros(queries, 0, dtype=torch.int64)
    return torch.cat(values), torch.cat(places)


class _Tiles:
    """Tiles of scores by index, in which -inf replaces NaN. The videos of a tile belong to one task."""

    def __init__(self, score: Score, rows: Sequence[int], columns: Sequence[int], chunk: int) -> None:
        self.score, self.offsets = score, rows
        self.rows = [slice(start, min(start + chunk, rows[-1])) for start in range(0, rows[-1], chunk)]
        self.columns = [
            (task, slice(start, min(start + TILE, stop)))
            for task, (first, stop) in enumerate(pairwise(columns))
            for start in range(first, stop, TILE)
        ]
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._room = KEPT

    def __call__(self, r: int, c: int, keep: bool = False) -> Tensor:
        tile = self._kept.get((r, c))
        if tile is None:
            tile = self.score(self.rows[r], self.columns[c][1])
            tile = tile.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
            self._room -= tile.nbytes if keep else 0
            if keep and self._room >= 0:
                self._kept[r, c] = tile
        return tile


def _picked(tiles: _Tiles, wanted: Tensor) -> Tensor:
    """Return the score (Q,) of each caption and its own video."""
    parts = []
    starts = torch.tensor([part.start for _, part in tiles.columns])
    for r, rows in enumerate(tiles.rows):
        tile_of = torch.bucketize(wanted[rows], starts, right=True) - 1
        found: Tensor | None = None
        for c in tile_of.unique().tolist():
            tile, at = tiles(r, c, keep=True), (tile_of == c).nonzero()[:, 0]
            column = to_device(wanted[rows][at] - starts[c], tile.device)
            at = to_device(at, tile.device)
            found = tile.new_empty(len(tile)) if found is None else found
            found[at] = tile[at, column]
        if found is not None:
            parts.append(found)
    return torch.cat(parts)


@dataclass(frozen=True)
class _Counts:
    """Counts per caption (2, Q) and per video (2, V).

    The first row counts better scores. The second row counts scores that are not worse, including the own score.
    """

    captions: Tensor  # videos that a caption scores above its own
    own_captions: Tensor  # such videos of the caption's task
    groups: Tensor  # captioned videos whose best caption scores a video higher than its own best caption does
    own_groups: Tensor  # such captioned videos of the video's task
    all_captions: Tensor  # captions that score a video higher than its own best caption does


def _on_cpu(counts: _Counts, *others: Tensor) -> tuple[_Counts, Tensor, Tensor]:
    """Copy counts and two vectors to the CPU in float64, in one transfer, so that a ranking synchronizes only once."""
    parts = [*vars(counts).values(), *(x.double() for x in others)]
    moved = torch.cat([x.flatten() for x in parts]).cpu().split([x.numel() for x in parts])
    *found, first, second = (x.view(part.shape) for x, part in zip(moved, parts))
    return _Counts(*found), first, second


def _count(tiles: _Tiles, own: Tensor, best: Tensor, group: Tensor) -> _Counts:
    """Sum the counts of all tiles.

    Args:
        own: (Q,) score of each caption and its own video.
        best: (V,) best score among a video's own captions.
        group: (Q,) index of a caption's video among the captioned videos, not decreasing.
    """
    zeros = [torch.zeros(2, len(x), dtype=torch.float64, device=own.device) for x in (own, own, best, best, best)]
    found = _Counts(*zeros)
    several = bool((group.diff() == 0).any())
    offsets = [*(int(group[row]) if row < len(group) else int(group[-1]) + 1 for row in tiles.offsets)]
    in_tiles = [_Groups(group[rows] - group[rows.start], own.device) for rows in tiles.rows] if several else []
    for c, (task, columns) in enumerate(tiles.columns):
        carry: Tensor | None = None  # best caption score of the video whose captions continue in the next tile
        for r, rows in enumerate(tiles.rows):
            tile = tiles(r, c)
            counts = _beating(tile, own[rows, None], 1)
            found.captions[:, rows] += counts
            mine = _within(rows, tiles.offsets[task], tiles.offsets[task + 1])
            found.own_captions[:, rows][:, mine] += counts[:, mine]
            first = int(group[rows.start])
            maxima = tile
            if several:
                found.all_captions[:, columns] += _beating(tile, best[columns], 0)
                maxima = in_tiles[r].maxima(tile)
                if carry is not None:
                    maxima[0] = torch.maximum(maxima[0], carry)
                goes_on = rows.stop < len(group) and bool(group[rows.stop] == group[rows.stop - 1])
                maxima, carry = (maxima[:-1], maxima[-1]) if goes_on else (maxima, None)
            mine = _within(slice(first, first + len(maxima)), offsets[task], offsets[task + 1])
            counts = _beating(maxima[mine], best[columns], 0)
            found.own_groups[:, columns] += counts
            found.groups[:, columns] += counts
            for others in (maxima[: mine.start], maxima[mine.stop :]):
                if len(others):
                    found.groups[:, columns] += _beating(others, best[columns], 0)
    return found if several else replace(found, all_captions=found.groups)


class _Groups:
    """Groups of consecutive rows; `number` (R,) on the CPU is the index of each row's group, from 0 without gaps."""

    def __init__(self, number: Tensor, device: torch.device) -> None:
        self.counts = torch.bincount(number)
        self.number = to_device(number, device)
        if device.type not in SCATTERS:  # rows of each group (N, most), padded by repeating the last row
            first = self.counts.cumsum(0) - self.counts
            later = torch.minimum(torch.arange(int(self.counts.max())), self.counts[:, None] - 1)
            self.rows = to_device(first[:, None] + later, device)

    def maxima(self, x: Tensor) -> Tensor:
        """Return the maximum of each column of x (R, ...) within each group, (N, ...)."""
        if x.device.type not in SCATTERS:
            return x[self.rows].amax(dim=1)
        number = self.number.view(-1, *[1] * (x.ndim - 1)).expand_as(x)
        return x.new_full((len(self.counts), *x.shape[1:]), -math.inf).scatter_reduce_(0, number, x, "amax")


def _within(part: slice, start: int, stop: int) -> slice:
    """Return the intersection of a part with start:stop, as a slice relative to the part's start."""
    length = part.stop - part.start
    first = min(max(start - part.start, 0), length)
    return slice(first, min(max(stop - part.start, first), length))


def _beating(scores: Tensor, own: Tensor, dim: int) -> Tensor:
    """Count the scores above `own`, and the scores not below it, along `dim`: (2, N), integers as float64."""
    room = torch.empty_like(scores)  # comparisons in the dtype of the scores sum fastest, and exactly
    return torch.stack([than(scores, own, out=room).sum(dim=dim).double() for than in (torch.gt, torch.ge)])
