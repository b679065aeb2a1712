"""Scores of captions and stored videos, computed in tiles; scores are bit-identical for any shape of the tiles.

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
from ctvr.orchestrator.processes import beat

COLUMN_MULTIPLE = 32  # if the number of columns is a multiple of it, MKL sums all columns in one order
ROW_MULTIPLE = 8  # if the number of rows is a multiple of it, MKL sums all rows in one order


class TiledScorer:
    """Computes tiles of `Method.score` on demand: float32 scores (R, C), on the device.

    Columns are filled up to a multiple of `COLUMN_MULTIPLE` with copies of the last video. Otherwise a product would
    sum its last columns in another order, and a video's score would depend on its position in the gallery. Rows are
    filled up to a multiple of `ROW_MULTIPLE`, so that scores do not depend on `evaluation.query_chunk`.

    Args:
        features: caption features (Q, ...), one tensor for all tasks or one tensor for each task.
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
        beat()
        task = bisect_right(self.columns, columns.start) - 1
        if self._last is None or self._last[0] != columns:
            first = self.columns[task]
            videos = self.galleries[task][columns.start - first : columns.stop - first]
            self._last = columns, to_device(_filled(videos, COLUMN_MULTIPLE), self.device)
        queries = self.features[task if len(self.features) > 1 else 0][rows]
        scores = self.method.score(to_device(_filled(queries, ROW_MULTIPLE), self.device), self._last[1])
        return scores[: len(queries), : columns.stop - columns.start].float()


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """Append copies of the last row until the number of rows is a multiple of `multiple`: (N, ...) -> (M, ...)."""
    missing = -len(rows) % multiple
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])]) if missing else rows


def offsets(sizes: Iterable[int]) -> list[int]:
    """Return start and end positions of consecutive parts of these sizes, from 0."""
    return [0, *accumulate(sizes)]
