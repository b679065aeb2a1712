"""Ranking in a gallery of stored and re-encoded videos, for methods with captions mapped to older models.

Such a method (`Capabilities.compensates_age`) has two features of a caption for each task: a mapped one for videos that
an older model stored, and an unmapped one for videos re-encoded by the current model.

Shapes: Q captions, V videos.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ctvr.methods.base import Method
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation import spill
from ctvr.orchestrator.learning.evaluation.evaluate import caption_features, final_scores, rank_scorer, rank_scores
from ctvr.orchestrator.learning.evaluation.ranking import Ranked
from ctvr.orchestrator.learning.evaluation.spill import spill_features
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

if TYPE_CHECKING:
    from ctvr.orchestrator.learning.evaluation.protocols import EvaluationContext


def caption_features_for(context: EvaluationContext, queries: Sequence[Queries], is_fresh: bool) -> Sequence[Tensor]:
    """Return all results of `caption_features`, for re-encoded galleries if `is_fresh`, otherwise for stored galleries.

    Empty on a worker that only encodes.
    """
    method, former = context.method, context.method.gallery_is_fresh
    method.gallery_is_fresh = is_fresh
    encoded = caption_features(method, queries, context.config, context.device, context.encode_sharded)
    try:
        if context.is_scoring:
            return spill_features(encoded, spill.MEMORY_BUDGET)
        for _ in encoded:  # the other workers wait for this worker's share
            pass
        return []
    finally:
        method.gallery_is_fresh = former


def rank_aged(
    method: Method,
    features: Sequence[Tensor],
    unmoved: Sequence[Tensor],
    counts: Sequence[int],
    queries: Sequence[Queries],
    galleries: Sequence[Tensor],
    config: EvaluationConfig,
    device: torch.device,
    as_matrix: bool,
) -> Ranked:
    """Rank captions and videos like `rank_features`, in galleries of stored and re-encoded videos.

    Args:
        features: captions (Q, d) for the stored videos, one tensor for each task.
        unmoved: captions (Q, d) for videos that the current model has encoded, one tensor for each task.
        counts: for each task, the number of its first videos that the current model has encoded.
    """
    old, new = (TiledScorer(method, each, galleries, device) for each in (features, unmoved))

    def score(rows: slice | Tensor, columns: slice) -> Tensor:
        task = bisect_right(old.columns, columns.start) - 1
        cut = min(max(old.columns[task] + counts[task], columns.start), columns.stop)
        parts = (new, slice(columns.start, cut)), (old, slice(cut, columns.stop))
        return torch.cat([scorer(rows, part) for scorer, part in parts if part.start < part.stop], dim=1)

    sizes = [len(gallery) for gallery in galleries]
    if not as_matrix:
        return rank_scorer(score, queries, sizes, config)
    everything, blocks = slice(0, len(features[0])), (slice(*block) for block in pairwise(old.columns))
    scores = torch.cat([score(everything, block).cpu() for block in blocks if block.start < block.stop], dim=1)
    is_cut = config.own_gallery == "cut"
    return rank_scores(final_scores(method, scores, queries, sizes, is_cut), queries, sizes, config)
