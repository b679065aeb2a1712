"""Oracle-task evaluation, in addition to the usual evaluation: each caption is given the task of its video.

    oracle/r1        every caption uses its own task's prompt (prototype, router) only; all stored videos are searched
    oracle/r1_block  as oracle/r1, but only the videos of the caption's task are searched, as with known routing
    oracle/right     share (%) of captions whose best video in the usual evaluation belongs to their task

`r1_block` minus the usual R@1 is the part of R@1 that is lost to videos of other tasks. `oracle/r1` minus the usual R@1
is the cost or gain of task-conditioned text. If the text is not task-conditioned, `oracle/r1` equals the usual R@1.

Shapes: Q captions, V videos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ctvr.methods.base import Method
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation import metrics, spill
from ctvr.orchestrator.learning.evaluation.evaluate import all_scores, caption_features, encode_texts, final_scores
from ctvr.orchestrator.learning.evaluation.ranking import Ranked, Score, rank, score_reader
from ctvr.orchestrator.learning.evaluation.spill import spill_features
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer, offsets
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

Spread = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


def oracle_metrics(
    method: Method,
    queries: Sequence[Queries],
    galleries: Sequence[Tensor],
    usual: Ranked | None,
    config: EvaluationConfig,
    device: torch.device,
    encode_sharded: Spread,
) -> dict[str, float]:
    """Return the metrics `stream/oracle/...` after a task; {} on a worker that only encodes.

    Every caption is encoded again, which doubles the passes through the text tower.

    Args:
        usual: ranks without an oracle; None on workers that do not score.
        encode_sharded: see `caption_features`.
    """
    sizes = [len(gallery) for gallery in galleries]
    if not method.declared.task_conditioned_text:
        own = None
    else:
        parts = [_own(method, q, config, device, encode_sharded) for q in queries]
        own = pad_sequence([row for part in parts for row in part], batch_first=True)  # pads word features
    features = caption_features(method, queries, config, device, encode_sharded)
    if usual is None:
        for _ in features:  # the other workers wait for this worker's share
            pass
        return {}
    if method.declared.normalizes_scores:
        scores = all_scores(method, features, galleries, config, device)
        as_usual = score_reader(final_scores(method, scores, queries, sizes).to_videos)
    else:
        as_usual = TiledScorer(method, spill_features(features, spill.MEMORY_BUDGET), galleries, device)
    rows, columns = offsets(len(q.target) for q in queries), offsets(sizes)
    told = usual
    if own is not None:
        if method.declared.normalizes_scores:
            scores = all_scores(method, [own] * len(sizes), galleries, config, device)
            told = _ranked(score_reader(method.normalize_scores(scores)), queries, rows, columns, config)
        else:
            told = _ranked(TiledScorer(method, [own], galleries, device), queries, rows, columns, config)
    return {
        "stream/oracle/r1": metrics.recall(told.to_videos, 1),
        "stream/oracle/r1_block": metrics.recall(usual.own, 1),
        "stream/oracle/right": 100.0 * _right(as_usual, rows, columns, config.query_chunk).mean().item(),
    }


def _own(
    method: Method, asked: Queries, config: EvaluationConfig, device: torch.device, encode_sharded: Spread
) -> Tensor:
    """Return the features of a task's captions, conditioned on their own task."""
    return encode_sharded(lambda tokens: encode_texts(method, tokens, asked.task, config, device), asked.tokens)


def _ranked(
    score: Score, queries: Sequence[Queries], rows: Sequence[int], columns: Sequence[int], config: EvaluationConfig
) -> Ranked:
    target = torch.cat([q.target + start for q, start in zip(queries, columns)])
    return rank(score, target, rows, columns, chunk=config.query_chunk)


def _right(score: Score, rows: Sequence[int], columns: Sequence[int], chunk: int) -> Tensor:
    """Return (Q,): the share of a caption's best videos (several if tied) that belong to the caption's task."""
    shares = []
    for task, (start, stop) in enumerate(pairwise(rows)):
        for first in range(start, stop, chunk):
            part = slice(first, min(first + chunk, stop))
            tiles = [score(part, slice(*columns[other : other + 2])).float().cpu() for other in range(len(columns) - 1)]
            whole = torch.cat(tiles, dim=1).nan_to_num(nan=-torch.inf)
            is_best = whole == whole.amax(dim=1, keepdim=True)
            inside = is_best[:, columns[task] : columns[task + 1]].sum(dim=1)
            shares.append(inside / is_best.sum(dim=1))
    return torch.cat(shares) if shares else torch.zeros(0)
