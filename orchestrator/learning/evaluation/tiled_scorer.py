"""Scores of captions and stored videos, computed by tiles: equal bits for any shape of a tile.

Shapes: Q queries, V videos of a task, R rows and C columns of a tile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ctvr.methods.base import Method
from ctvr.methods.layers.transfer import to_device

COLUMN_MULTIPLE = 32  # columns of a product: for multiples of it, MKL sums all columns in the same order
ROW_MULTIPLE = 8  # rows of a product, in the same sense


class TiledScorer:
    """Computes tiles of `Method.score` on demand: float32 scores (R, C), on the device.

    Columns are filled up to a multiple of `COLUMN_MULTIPLE` with copies of the last video: a product sums the last
    columns of other widths in another order, and a video would score differently by its place in the gallery. Rows are
    filled up to a multiple of `ROW_MULTIPLE`, or scores would depend on `evaluation.query_chunk`, which is not in keys.

    Args:
        features: caption features (Q, ...), one tensor for all tasks or one for each.
        galleries: video features (V, ...) of each task.
    """

    def __init__(
        self, method: Method, features: Sequence[Tensor], galleries: Sequence[Tensor], device: torch.device
    ) -> None:
        self.method, self.features, self.galleries, self.device = method, features, galleries, device
        self.columns = offsets(map(len, galleries))
        self._last: tuple[slice, Tensor] | None = None  # columns and features of the videos on the device

    @torch.no_grad()
    def __call__(self, rows: slice | Tensor, columns: slice) -> Tensor:
        task = bisect_right(self.columns, columns.start) - 1
        if self._last is None or self._last[0] != columns:
            first = self.columns[task]
            videos = self.galleries[task][columns.start - first : columns.stop - first]
            self._last = columns, to_device(_filled(videos, COLUMN_MULTIPLE), self.device)
        queries = self.features[task if len(self.features) > 1 else 0][rows]
        scores = self.method.score(to_device(_filled(queries, ROW_MULTIPLE), self.device), self._last[1])
        return scores[: len(queries), : columns.stop - columns.start].float()


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """Append copies of the last row, up to a multiple: (N, ...) -> (M, ...)."""
    missing = -len(rows) % multiple
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])]) if missing else rows


def offsets(sizes: Iterable[int]) -> list[int]:
    """Return start and end positions of consecutive parts of these sizes, from 0."""
    return [0, *accumulate(sizes)]
