"""Evaluation after each task: the captions of all tasks so far search the stored video features.

CTVR (arXiv:2503.10111, section 3): the videos of task t are encoded once, by the model after task t; all
captions of tasks 1..t search all stored videos. CVLM (BMU-MoCo, section 4): every task's videos are re-encoded
by the current model and searched by that task's captions only.

Shapes: Q queries, V videos, L text length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ctvr.methods.backbone.merged_weights import merged_weights
from ctvr.methods.base import Method
from ctvr.methods.layers.transfer import to_device, trim_padding
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation import metrics, spill
from ctvr.orchestrator.learning.evaluation.ranking import Positions, Ranked, Score, rank, score_reader
from ctvr.orchestrator.learning.evaluation.spill import spill_features
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer, offsets
from ctvr.orchestrator.learning.record.run_state import Evaluation
from ctvr.orchestrator.processes import beat
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

_KNOWN_TEXTS: WeakKeyDictionary[Method, dict[bytes, Tensor]] = WeakKeyDictionary()


def encode_for_task(method: Method, tokens: Tensor, task: int | None, kept: dict[int, Any], part: int = 0) -> Tensor:
    """Encode captions for a task. With `text_passes`, `kept[part]` is encoded once and adapted to each task."""
    if task is None or not method.text_passes:
        return method.encode_text(tokens, task)
    if part not in kept:
        kept[part] = method.encode_text_once(tokens)
    return method.move_text(kept[part], task)


@torch.no_grad()
@merged_weights()
def encode_texts(
    method: Method,
    tokens: Tensor,
    task: int | None,
    config: EvaluationConfig,
    device: torch.device,
    kept: dict[int, Any] | None = None,
) -> Tensor:
    """Return caption features (Q, ...) on the CPU; word features are padded with zeros to the longest caption.

    Captions of similar length are encoded together, because a batch is padded to its longest caption. Equal captions
    are encoded once; with a frozen text tower, once per run instead of after every task.

    Args:
        kept: outputs of `encode_text_once` for these captions, which other tasks reuse; see `encode_for_task`.
    """
    keys = [row.numpy().tobytes() for row in tokens]
    known: dict[bytes, Tensor] = _KNOWN_TEXTS.setdefault(method, {}) if method.declared.text_is_frozen else {}
    new = {key: row for row, key in enumerate(keys) if key not in known}
    rows = torch.tensor(list(new.values()), dtype=torch.int64)
    rows = rows[tokens[rows].argmax(dim=1).argsort(stable=True)]  # by the position of the end of text
    kept = {} if kept is None else kept
    for number, part in enumerate(rows.split(config.batch_size) if len(rows) else ()):
        beat()
        own = tokens[part] if method.declared.attends_to_padding else trim_padding(tokens[part])
        features = encode_for_task(method, to_device(own, device), task, kept, number).float().cpu()
        known.update((keys[row], feature) for row, feature in zip(part.tolist(), features))
    return torch.nn.utils.rnn.pad_sequence([known[key] for key in keys], batch_first=True)


def caption_features(
    method: Method,
    queries: Sequence[Queries],
    config: EvaluationConfig,
    device: torch.device,
    encode_sharded: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield features (Q, ...) of all captions: once, or once per task if the text is task-conditioned.

    In the second case every caption is encoded once for the videos of each task, and the scores of all tasks are
    compared unchanged (CTVR, section 4.2). A method with `text_passes` encodes it once and adapts the features.

    Args:
        encode_sharded: encodes captions on all workers and returns them on the worker that scores; see
            `distributed.Workers.encode_sharded`.
    """
    tokens = torch.cat([q.tokens for q in queries])
    tokens = trim_padding(tokens) if method.declared.attends_to_padding else tokens
    run = encode_sharded or (lambda encode, rows: encode(rows))
    kept: dict[int, Any] = {}
    for task in [q.task for q in queries] if method.declared.task_conditioned_text else [None]:
        yield run(lambda rows, task=task: encode_texts(method, rows, task, config, device, kept), tokens)  # type: ignore[misc]


def all_scores(
    method: Method,
    features: Iterable[Tensor],
    galleries: Sequence[Tensor],
    config: EvaluationConfig,
    device: torch.device,
) -> Tensor:
    """Return `Method.score` of all captions and all stored videos on the CPU, (Q, V) or (Q, V, ...), in task order.

    Args:
        features: from `caption_features`; read one at a time, because word features are large.
    """
    columns, whole = offsets(map(len, galleries)), torch.empty(0)
    known = iter(features)
    of_task = next(known)
    for task, gallery in enumerate(galleries):
        if task and method.declared.task_conditioned_text:
            of_task = next(known)
        score = TiledScorer(method, [of_task], [gallery], device)
        for rows in torch.arange(len(of_task)).split(config.query_chunk):
            part = score(slice(int(rows[0]), int(rows[-1]) + 1), slice(0, len(gallery))).cpu()
            if not len(whole):
                whole = part.new_empty(len(of_task), columns[-1], *part.shape[2:])
            whole[rows, columns[task] : columns[task + 1]] = part
    return whole


def compute_ranks(
    method: Method,
    queries: Sequence[Queries],
    galleries: Sequence[Tensor],
    config: EvaluationConfig,
    device: torch.device,
    protocol: str,
    encode_sharded: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None,
    is_scoring: bool = True,
    on_scores: Callable[[Scores], None] | None = None,
) -> Ranked | None:
    """Rank the captions and the stored videos of tasks 1..t, in both directions.

    Scores without normalization are counted tile by tile. A method that normalizes scores needs the matrix (Q, V), and
    so do metrics of other packages.
    If the text is task-conditioned, either all caption features or the matrix is kept, whichever is smaller. If both
    exceed `spill.MEMORY_BUDGET`, the features are spilled to files.

    Args:
        protocol: protocol of the stream, `ctvr` or `cvlm`.
        encode_sharded: see `caption_features`.
        is_scoring: whether this worker scores; a worker that only encodes returns None.
        on_scores: receives all final scores, which are then computed as one matrix.
    """
    sizes, encoded = (
        [len(gallery) for gallery in galleries],
        caption_features(method, queries, config, device, encode_sharded),
    )
    if not is_scoring:
        for _ in encoded:
            pass
        return None
    first = next(encoded)
    scored = len(first) * sum(sizes)  # elements of the matrix
    is_large = (
        method.declared.task_conditioned_text
        and len(galleries) * first.numel() > scored
        and 4 * scored <= spill.MEMORY_BUDGET
    )
    as_matrix = method.declared.normalizes_scores or is_large or on_scores is not None
    features = chain([first], encoded)
    known = features if as_matrix else spill_features(features, spill.MEMORY_BUDGET)
    return rank_features(method, known, queries, galleries, config, device, as_matrix, protocol, on_scores)


def rank_features(
    method: Method,
    features: Iterable[Tensor],
    queries: Sequence[Queries],
    galleries: Sequence[Tensor],
    config: EvaluationConfig,
    device: torch.device,
    as_matrix: bool,
    protocol: str = "ctvr",
    on_scores: Callable[[Scores], None] | None = None,
) -> Ranked:
    """Rank encoded captions and the stored videos of tasks 1..t, in both directions.

    Args:
        features: results of `caption_features`; a sequence unless `as_matrix`.
        as_matrix: whether to compute all scores first, which a method that normalizes scores requires.
        on_scores: receives the final scores of a matrix.
    """
    sizes = [len(gallery) for gallery in galleries]
    if as_matrix:
        scores = all_scores(method, features, galleries, config, device)
        is_cut = config.own_gallery == "cut" and protocol != "cvlm"
        final = final_scores(method, scores, queries, sizes, is_cut)
        if on_scores is not None:
            on_scores(final)
        return rank_scores(final, queries, sizes, config)
    return rank_scorer(TiledScorer(method, list(features), galleries, device), queries, sizes, config)


def rank_scorer(score: Score, queries: Sequence[Queries], sizes: Sequence[int], config: EvaluationConfig) -> Ranked:
    """Rank captions and videos by scores that are computed on demand, for galleries of these sizes."""
    rows, columns = offsets(len(q.target) for q in queries), offsets(sizes)
    target = torch.cat([q.target + start for q, start in zip(queries, columns)])
    twin = torch.cat([torch.where(q.twin >= 0, q.twin + start, -1) for q, start in zip(queries, columns)])
    return rank(score, target, rows, columns, twin, config.query_chunk)


@dataclass(frozen=True)
class Scores:
    """Final scores: rows are captions, columns videos, both in task order."""

    to_videos: Tensor  # (Q, V): captions search videos
    to_captions: Tensor  # (Q, V): videos search captions
    own: tuple[Tensor, ...]  # each task's captions and videos only, captions search videos
    own_to_captions: tuple[Tensor, ...]  # each task's captions and videos only, videos search captions


def final_scores(
    method: Method, scores: Tensor, queries: Sequence[Queries], sizes: Sequence[int], is_cut: bool = False
) -> Scores:
    """Apply the method's normalization to the scores of `all_scores`, separately in each direction.

    All tasks so far are one gallery, normalized as one matrix. A task's own gallery is normalized by itself: its
    ranks then do not depend on later tasks, so that the forgetting of an untrained model is 0.

    Args:
        is_cut: whether to slice own galleries from the normalized matrix instead; see `EvaluationConfig.own_gallery`.
    """
    rows, columns = offsets(len(q.target) for q in queries), offsets(sizes)
    parts = [(slice(*rows[i : i + 2]), slice(*columns[i : i + 2])) for i in range(len(sizes))]
    ways = method.normalize_scores, method.normalize_scores_v2t
    to_videos, to_captions = (way(scores) for way in ways)
    if is_cut or len(parts) == 1:
        own, own_to_captions = (tuple(each[part] for part in parts) for each in (to_videos, to_captions))
    else:
        own, own_to_captions = (tuple(way(scores[part]) for part in parts) for way in ways)
    return Scores(to_videos, to_captions, own, own_to_captions)


def rank_scores(scores: Scores, queries: Sequence[Queries], sizes: Sequence[int], config: EvaluationConfig) -> Ranked:
    """Rank captions and videos by precomputed scores."""
    to_videos = rank_scorer(score_reader(scores.to_videos), queries, sizes, config)
    to_captions = rank_scorer(score_reader(scores.to_captions), queries, sizes, config)
    own = [rank_scorer(score_reader(s), [q], [size], config) for s, q, size in zip(scores.own, queries, sizes)]
    own_videos = [
        rank_scorer(score_reader(s), [q], [size], config) for s, q, size in zip(scores.own_to_captions, queries, sizes)
    ]
    return replace(
        to_captions,
        to_videos=to_videos.to_videos,
        beats_twin=to_videos.beats_twin,
        own=Positions.joined([each.own for each in own]),
        own_videos=Positions.joined([each.own_videos for each in own_videos]),
    )


def metrics_of(ranked: Ranked, queries: Sequence[Queries], sizes: Sequence[int]) -> Evaluation:
    """Compute the metrics after task t that depend only on ranks of this evaluation; `add_history` adds other metrics.

    `r1_twins` and `r1_no_twins` are R@1 of the captions whose video has a time-reversed twin, and of other captions.
    In `v2t` and `v2t_captions` a video is the query. In `v2t` it is ranked among all captioned videos, each scored by
    its best caption, as in the released codes. In `v2t_captions` its best own caption is ranked among all captions of
    other videos.

    Args:
        ranked: from `compute_ranks`.
        queries: queries of tasks 1..t.
        sizes: number of stored videos of each task.
    """
    rows, columns = offsets(len(q.target) for q in queries), offsets(sizes)
    said = Evaluation()
    for direction, found in (("t2v", ranked.to_videos), ("v2t", ranked.videos), ("v2t_captions", ranked.captions)):
        for name, value in metrics.summary(found).items():
            said.metrics[f"stream/{direction}/{name}"] = value
    has_twin = ~ranked.beats_twin.isnan()
    if bool(has_twin.any()):
        said.metrics["stream/t2v/twin"] = 100.0 * ranked.beats_twin[has_twin].mean().item()
        for name, asked in (("r1_twins", has_twin), ("r1_no_twins", ~has_twin)):
            said.metrics[f"stream/t2v/{name}"] = metrics.recall(ranked.to_videos[asked], 1)
    for index, q in enumerate(queries):
        part, task = slice(rows[index], rows[index + 1]), f"task_{index + 1:02d}"
        of_task = (ranked.captioned >= columns[index]) & (ranked.captioned < columns[index + 1])
        said.own.append(metrics.recall(ranked.own[part], 1))
        said.union.append(metrics.recall(ranked.to_videos[part], 1))
        said.metrics[f"{task}/t2v/r1"] = said.union[-1]
        said.metrics[f"{task}/t2v/r1_own"] = said.own[-1]
        said.metrics[f"{task}/v2t/r1_own"] = metrics.recall(ranked.own_videos[of_task], 1)
        said.ranks.update(zip(q.names, ranked.to_videos[part].listed()))
        said.own_ranks.update(zip(q.names, ranked.own[part].listed()))
        videos = {row: name.rpartition("#")[0] for row, name in zip(q.target.tolist(), q.names)}
        said.v2t.update(zip((videos[row] for row in sorted(videos)), ranked.videos[of_task].listed()))
    return said


def add_history(result: Evaluation, own: metrics.Matrix, union: metrics.Matrix, protocol: str) -> None:
    """Add the metrics that need earlier tasks to `result.metrics`: forgetting and, for CVLM, FR and HM."""
    result.metrics.update(metrics.history(own, union, protocol))
    if protocol == "cvlm":
        backwards = [value for name, value in result.metrics.items() if name.endswith("/v2t/r1_own")]
        result.metrics["stream/v2t/r1_mean"] = sum(backwards) / len(backwards) if backwards else math.nan
