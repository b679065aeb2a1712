"""Age of the stored index: R@1 of the same queries with old videos as stored, and re-encoded by the current model.

The videos of task k are stored by the model after task k and are never encoded again (CTVR, section 3), while the
captions of all tasks use the newest model. After a task this module re-encodes a share of the old videos, oldest first,
and lets the same caption features search the mixed gallery. A method that maps captions to the feature space of
the model that stored a video (`Capabilities.compensates_age`) does not map them for a re-encoded video.

    stream/index/r1_P           R@1 with P % of the old videos (of earlier tasks) re-encoded; P = 0: all as stored
    stream/index/gap            r1_100 - r1_0: compatibility gap in points; task_NN/index/gap: for captions of one task
    task_NN/index/gap_own       this gap among the videos of that task alone; 0 for the newest task
    stream/index/gained, lost   % of captions that are right in only one of the two galleries; gap = gained - lost.
                                A tie counts by its probability of rank 1
    stream/index/update         change of R@1 since the previous task: captions and stored videos of earlier tasks
    stream/index/update_gained, update_lost    % of these captions that are right only now, or were right only before
    stream/index/update_gain    `update` divided by the change of R@1 if these videos are re-encoded
    stream/index/videos         number of videos that were encoded for these metrics; seconds: time of this encoding
    stream/index/videos_P       number of videos of the searched gallery that the current model re-encoded
    stream/index/bytes          size of the stored features of all tasks so far, in float32

BCT's criterion of backward compatibility (Shen et al., CVPR 2020) holds between two tasks if `update` > 0. Then more
captions of earlier tasks find their stored videos than before. BCT's update gain is 1 if `update` equals the effect of
re-encoding these videos, and absent if re-encoding does not change R@1. Gaps and the gain need P = 100. Gaps are
differences of R@1 in points, over all captions so far (each counts once). A re-encoded gallery is not an upper bound:
its old videos compete better with the new videos, so `gap` can be negative. The ranks at every P are kept in the record
of the run (`RunState.aged_ranks`). FastFill calls the curve over P back-filling.

Shapes: Q captions, V videos, T tasks.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.base import Method
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation import metrics, spill
from ctvr.orchestrator.learning.evaluation.evaluate import (
    caption_features,
    final_scores,
    rank_features,
    rank_scorer,
    rank_scores,
)
from ctvr.orchestrator.learning.evaluation.ranking import Positions, Ranked
from ctvr.orchestrator.learning.evaluation.spill import spill_features
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer, offsets
from ctvr.orchestrator.learning.evaluation.unseen import distractor_metrics, newest_recall, unseen_metrics
from ctvr.orchestrator.learning.record.run_state import Evaluation
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.streams.query_rank import Rank

if TYPE_CHECKING:
    from ctvr.orchestrator.learning.evaluation.protocols import EvaluationContext
    from ctvr.orchestrator.learning.record.run_state import RunState


def optional_metrics(
    context: EvaluationContext,
    encode_gallery: Callable[..., Tensor],
    reencodes: bool,
    done: int,
    own: Sequence[float],
    record: RunState,
    first: Mapping[str, float],
) -> Evaluation:
    """Compute the metrics of `reencode`, `unlearned_tasks`, `also` and `distractors` after `done` tasks.

    Args:
        context: inputs of the evaluation, with the stored galleries.
        encode_gallery: encodes videos of a task with the current model, on all workers (`Loop._gallery`).
        reencodes: whether the current model has encoded all stored galleries.
        done: number of finished tasks; 0 measures the untrained model.
        own: R@1 of the tasks so far, each in its own gallery.
        record: state of the run after the previous task.
        first: metrics of the untrained model.
    """
    config, tasks = context.config, len(context.data.stream.tasks)
    found = Evaluation()
    if config.reencode and done and (config.reencode_after == "all" or done == tasks):
        found.add(measure_ages(context, encode_gallery, reencodes, record.ranks))
    if config.unlearned_tasks:
        found.metrics.update(unlearned_metrics(context, encode_gallery, done))
        if done == tasks and context.is_scoring:
            found.metrics.update(transfer_metrics([*record.own, own], record.metrics))
    if config.also:
        found.metrics.update(unseen_metrics(context, done, first))
    if config.distractors and done == tasks:
        found.metrics.update(distractor_metrics(context))
    return found


def measure_ages(
    context: EvaluationContext, encode_gallery: Callable[..., Tensor], reencodes: bool, former: Mapping[str, Rank]
) -> Evaluation:
    """Return the metrics of the module docstring after a task, and ranks; empty on a worker that only encodes.

    Args:
        former: query -> rank among the stored videos after the previous task.
    """
    config, stored, started = context.config, context.galleries, time.monotonic()
    sizes, shares = [len(gallery) for gallery in stored], sorted({0, *config.reencode})
    counts = _counts(sizes, 0 if reencodes else max(shares))
    fresh = [encode_gallery(task, count=count) for task, count in enumerate(counts) if count]
    fresh += stored[len(fresh) :]
    seconds = time.monotonic() - started
    queries = context.queries()
    features = caption_features_for(context, queries, reencodes)
    # A method that maps captions to older models searches re-encoded videos with unmapped captions
    unmoved = caption_features_for(context, queries, True) if context.method.declared.compensates_age else None
    if not context.is_scoring:
        return Evaluation()
    as_matrix = bool(context.method.declared.normalizes_scores)
    ranked: dict[int, Ranked] = {}
    for share in shares:
        galleries = stored if reencodes else mix_galleries(stored, fresh, share)
        about = queries, galleries, config, context.device, as_matrix
        if unmoved is None:
            ranked[share] = rank_features(context.method, features, *about)
        else:
            ranked[share] = rank_aged(context.method, features, unmoved, _counts(sizes, share), *about)
    found = {f"stream/index/r1_{share}": metrics.recall(each.to_videos, 1) for share, each in ranked.items()}
    if 100 in ranked:
        found |= _gaps(ranked[0], ranked[100], offsets(len(q.target) for q in queries))
    past = [name for asked in queries[:-1] for name in asked.names]
    if past and not reencodes and former.keys() >= set(past):

        def ranks_of(asked: Sequence[Tensor], galleries: Sequence[Tensor]) -> Positions:
            kept = asked[: len(stored) - 1] if len(asked) > 1 else asked
            about = queries[:-1], galleries[:-1], config, context.device, as_matrix
            return rank_features(context.method, [each[: len(past)] for each in kept], *about).to_videos

        afresh = ranks_of(features if unmoved is None else unmoved, fresh) if 100 in ranked else None
        found |= _update(Positions.of([former[name] for name in past]), ranks_of(features, stored), afresh)
    old = {share: sum(_counts(sizes, 100 if reencodes else share)) for share in shares}
    found |= {f"stream/index/videos_{share}": float(count) for share, count in old.items()}
    found["stream/index/videos"] = float(sum(counts))
    found["stream/index/seconds"] = seconds
    found["stream/index/bytes"] = float(sum(4 * gallery.numel() for gallery in stored))
    names = [name for asked in queries for name in asked.names]
    ranks = {str(share): dict(zip(names, each.to_videos.listed())) for share, each in ranked.items()}
    return Evaluation(found, aged_ranks=ranks)


def _counts(sizes: Sequence[int], share: int) -> list[int]:
    """Return how many videos of each task are re-encoded: `share` % of all videos of earlier tasks, oldest first."""
    left = sum(sizes[:-1]) * share // 100
    counts = []
    for size in sizes[:-1]:
        counts.append(min(size, left))
        left -= counts[-1]
    return [*counts, 0]


def mix_galleries(stored: Sequence[Tensor], fresh: Sequence[Tensor], share: int) -> list[Tensor]:
    """Return the galleries with the oldest `share` % of the videos of earlier tasks taken from `fresh`.

    Args:
        stored: features (V, ...) of each task's videos; the last task is the newest.
        fresh: features of these videos by the current model; only the first videos of each task are needed.
        share: percent in [0, 100]; the count is rounded down.
    """
    counts = _counts([len(gallery) for gallery in stored], share)
    return [
        torch.cat([_wide(new[:count], old), _wide(old[count:], new)]) if count else old
        for old, new, count in zip(stored, fresh, counts, strict=True)
    ]


def _wide(features: Tensor, other: Tensor) -> Tensor:
    """Pad features with zeros to the width of `other`: after an upgrade, stored features have two widths."""
    missing = other.shape[-1] - features.shape[-1]
    return F.pad(features, (0, missing)) if missing > 0 else features


def _gaps(stored: Ranked, fresh: Ranked, rows: Sequence[int]) -> dict[str, float]:
    """Return the gaps overall and per task, and the share of captions that only one gallery answers correctly."""
    found = {"stream/index/gap": metrics.recall(fresh.to_videos, 1) - metrics.recall(stored.to_videos, 1)}
    found["stream/index/gained"], found["stream/index/lost"] = _flips(stored.to_videos, fresh.to_videos)
    for index in range(len(rows) - 1):
        part, task = slice(rows[index], rows[index + 1]), f"task_{index + 1:02d}/index"
        for name, old, new in (("gap", stored.to_videos, fresh.to_videos), ("gap_own", stored.own, fresh.own)):
            found[f"{task}/{name}"] = metrics.recall(new[part], 1) - metrics.recall(old[part], 1)
    return found


def _update(before: Positions, after: Positions, afresh: Positions | None = None) -> dict[str, float]:
    """Return the change of R@1 between two positions (Q,) of the same captions among the same stored videos.

    Args:
        before, after: positions by the model after the previous task and by the current model.
        afresh: positions by the current model among these videos if they are re-encoded.
    """
    gained, lost = _flips(before, after)
    change = metrics.recall(after, 1) - metrics.recall(before, 1)
    found = {"stream/index/update": change, "stream/index/update_gained": gained, "stream/index/update_lost": lost}
    possible = 0.0 if afresh is None else metrics.recall(afresh, 1) - metrics.recall(before, 1)
    return {**found, "stream/index/update_gain": change / possible} if possible else found


def _flips(before: Positions, after: Positions) -> tuple[float, float]:
    """Return how much P(rank = 1) rises and falls from `before` to `after` (Q,), in percent of the captions."""
    change = after.chance(1) - before.chance(1)
    return 100.0 * change.clamp(min=0).mean().item(), -100.0 * change.clamp(max=0).mean().item()


def unlearned_metrics(context: EvaluationContext, encode_gallery: Callable[..., Tensor], done: int) -> dict[str, float]:
    """Return `task_NN/t2v/r1_unlearned`: R@1 of each task after the first `done`, in its own gallery.

    Videos and captions are encoded with the parts (prompt, router) of the newest task. If `done` is 0, the metric is
    called `r1_untrained`. A worker that only encodes gets {}.
    """
    name, found = "r1_unlearned" if done else "r1_untrained", {}
    for index in range(done, len(context.data.stream.tasks)):
        r1 = newest_recall(context, context.data.queries(index, context.split), encode_gallery(index))
        if r1 is not None:
            found[f"task_{index + 1:02d}/t2v/{name}"] = r1
    return found


def transfer_metrics(own: metrics.Matrix, former: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return forward transfer and ZSCL's Transfer, Avg and Last, from the own-gallery R@1 after every task.

    Args:
        own: R@1 of tasks 0..t after task t, for all T tasks.
        former: metrics after tasks 1..T-1, including the metrics of `unlearned_metrics`.

    Returns:
        `stream/transfer/fwt` (GEM, eq. 3, with the untrained instead of a random model), `transfer`, `average` and
        `last` (ZSCL, section 5), in points and percent. FWT and Transfer are undefined for one task, and then absent.
    """
    tasks = len(own)
    found = {"stream/transfer/last": sum(own[-1]) / tasks}
    if tasks == 1:
        return {**found, "stream/transfer/average": found["stream/transfer/last"]}
    names = [f"task_{k + 1:02d}/t2v/r1_" for k in range(tasks)]
    after = [[*own[t], *(former[t][f"{name}unlearned"] for name in names[t + 1 :])] for t in range(tasks - 1)]
    after.append(list(own[-1]))
    untrained = [former[0][f"{name}untrained"] for name in names]
    found["stream/transfer/average"] = sum(map(sum, after)) / tasks**2
    found["stream/transfer/fwt"] = sum(after[k - 1][k] - untrained[k] for k in range(1, tasks)) / (tasks - 1)
    before = [sum(after[t][k] for t in range(k)) / k for k in range(1, tasks)]
    found["stream/transfer/transfer"] = sum(before) / (tasks - 1)
    return found


# Ranking in a gallery of stored and re-encoded videos, for methods that map captions to the model of a stored video.
#
# Such a method (`Capabilities.compensates_age`) has two features of a caption for each task: a mapped one for videos
# that an older model stored, and an unmapped one for videos re-encoded by the current model.
#
# Shapes: Q captions, V videos.


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
