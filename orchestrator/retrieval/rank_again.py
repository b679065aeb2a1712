"""Ranks of captions among the stored videos of a loaded model, computed again as its run evaluated them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.data.device import autocast_for
from ctvr.orchestrator.learning.evaluation.evaluate import compute_ranks
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.streams.query_rank import Rank


def rank_again(model: Model, names: Collection[str], protocol: str) -> dict[str, tuple[Rank, Rank]]:
    """Return query -> its rank among all videos and among the videos of its task. Only the captions are encoded.

    Args:
        model: a model with the gallery of its first tasks (`jobs.load_model.load_task`).
        names: queries, `<video>#<number of the caption>`. A method that normalizes scores, or
            whose features depend on the longest caption, gets all queries.
        protocol: `ctvr` or `cvlm`.
    """
    method, blocks = model.trained.method, model.gallery()
    needs_all = method.declared.normalizes_scores or method.declared.attends_to_padding

    def encode(encode: Callable[[Any], Tensor], rows: Any) -> Tensor:
        with autocast_for(model.trained.experiment.run.precision, model.device.type):
            return encode(rows)

    asked = []
    for block in blocks:
        every = model.data(block.items).queries(0, "test")
        rows = [row for row, name in enumerate(every.names) if name in names or needs_all]
        kept = every.tokens[rows], every.target[rows], every.twin[rows], tuple(every.names[row] for row in rows)
        asked.append(Queries(*kept, block.task or 0))
    galleries, config = [block.features for block in blocks], model.trained.experiment.evaluation
    ranked = compute_ranks(method, asked, galleries, config, model.device, protocol, encode)
    assert ranked is not None  # this process scores
    found = zip(ranked.to_videos.listed(), ranked.own.listed())
    return dict(zip((name for each in asked for name in each.names), found))
