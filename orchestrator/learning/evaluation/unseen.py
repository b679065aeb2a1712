"""Evaluation on streams that a run never learns: retention on their captions, and distractors in the gallery.

`evaluation.also=NAME,...` searches the videos of other streams before task 1 and after every task. Every stream is one
gallery, encoded by the current model, with the parts (prompt, router) of its newest task:

    stream/also/NAME/r1            R@1 of all captions of the evaluated split
    stream/also/NAME/r1_untrained  R@1 of these captions before task 1
    stream/also/NAME/lost          r1_untrained - r1, in points (C-CLIP's performance degradation)
    stream/also/NAME/retention     100 r1 / r1_untrained; absent where r1_untrained is 0

`evaluation.distractors=N,...` adds N videos of the stream `evaluation.distractors_from`, without their captions, to the
stored gallery after the last task. The last model encodes them. Larger sets contain the smaller ones:

    stream/distractors/r1_N        R@1 of the captions of the run's stream; N = 0: without distractors

No video of these streams may be a training or searched video of the run's stream. Videos are compared by their frames.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.prepare import prepare_stream
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.keys.run_key import frames_digest
from ctvr.orchestrator.learning.evaluation import metrics, spill
from ctvr.orchestrator.learning.evaluation.encode_videos import encode_videos
from ctvr.orchestrator.learning.evaluation.evaluate import caption_features, encode_texts, rank_features
from ctvr.orchestrator.learning.evaluation.spill import spill_features
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask

if TYPE_CHECKING:
    from ctvr.orchestrator.data.batches import StreamData
    from ctvr.orchestrator.learning.evaluation.protocols import EvaluationContext
    from ctvr.orchestrator.store.paths import RunPaths

DISTRACTORS = "distractors"  # key of their stream in `StreamData.others`; no stream of `also` can have this name


def load_others(config: EvaluationConfig, stream: Stream, places: RunPaths, render: bool = True) -> dict[str, Stream]:
    """Return the streams of `also` by name, and the distractors' stream, each as one task of its searched videos.

    With `render`, videos of embedded streams that do not exist are rendered.

    Raises:
        ConfigError: for an unknown stream, a stream without captions or without the split, and too few distractors.
    """
    found = {}
    for written in config.also:
        other = _searched(written, "evaluation.also", config.split, places, render)
        found[f"also/{re.sub(r'[^a-zA-Z0-9_.-]', '_', other.name)}"] = other
    if config.distractors:
        other = _searched(config.distractors_from, "evaluation.distractors_from", config.split, places, render)
        items, most = _items(other, config.split), max(config.distractors)
        if len(items) < most:
            raise ConfigError(
                f"{most} videos are needed, but the {config.split} split of {other.name} has {len(items)}",
                "evaluation.distractors",
                remedy=f"Use at most {len(items)}.",
            )
        drawn = sorted(items, key=lambda item: hashlib.sha256(item.video.encode()).digest())[:most]
        found[DISTRACTORS] = _of_items(other, config.split, drawn)
    return found


def _searched(name: str, setting: str, split: str, places: RunPaths, render: bool) -> Stream:
    try:
        stream = load_stream(name, places.root, places.videos, render)
    except ConfigError as error:
        raise error.at(setting) from error
    if stream.domain != "videos":
        raise ConfigError(f"{name} has {stream.domain}", setting, remedy="Use a stream of videos with captions.")
    if not (items := [item for task in range(len(stream.tasks)) for item in stream.items(task, split)]):
        raise ConfigError(f"{name} has no videos of the split {split}", setting, remedy="Use another stream.")
    return _of_items(stream, split, items)


def _of_items(stream: Stream, split: str, items: Sequence[Item]) -> Stream:
    parts: dict[str, Any] = {"train": (), "val": (), "test": (), split: tuple(items)}
    return replace(stream, tasks=(StreamTask(stream.name, stream.categories, **parts),))


def _items(stream: Stream, split: str) -> Sequence[Item]:
    return stream.items(0, split)


def prepare_others(
    others: Mapping[str, Stream],
    stream: Stream,
    sources: Mapping[str, FrameSource],
    source: FrameSource,
    split: str,
    decodes: bool,
) -> None:
    """Decode the videos of other streams, and check that none is a video of the run's stream.

    Args:
        sources: frame sources of each of `others`.
        source: frame source of `stream`, whose frames are already decoded.
        split: the evaluated split.
        decodes: whether this worker decodes the videos; other workers find the frames in the store.

    Raises:
        ConfigError: for a common video.
    """
    own = {source.key(item) for item in _own(stream, split)} if others else set()
    for key, other in others.items():
        if decodes:
            prepare_stream(other, sources[key], (split,))
        common = [item.video for item in _items(other, split) if sources[key].key(item) in own]
        if common:
            name = "evaluation.distractors_from" if key == DISTRACTORS else "evaluation.also"
            raise ConfigError(
                f"{len(common)} of the {len(_items(other, split))} videos of {other.name} are videos of "
                f"{stream.name} ({common[0]})",
                name,
                remedy="Use a stream of other videos.",
            )


def _own(stream: Stream, split: str) -> Iterator[Item]:
    return (item for task in range(len(stream.tasks)) for each in ("train", split) for item in stream.items(task, each))


def others_digest(others: Mapping[str, Stream], sources: Mapping[str, FrameSource], split: str) -> str:
    """Return the digest of the videos and captions of other streams, which is part of a run's key."""
    return digest_of([[key, each.digest, frames_digest(each, sources[key], (split,))] for key, each in others.items()])


def unseen_metrics(context: EvaluationContext, done: int, first: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics `stream/also/...` after `done` tasks (0: untrained model); {} on a worker that only encodes.

    Args:
        first: metrics of the untrained model, from this function with `done` 0.
    """
    found: dict[str, float] = {}
    for key, data in context.data.others.items():
        if key != DISTRACTORS:
            r1 = newest_recall(context, data.queries(0, context.split), _encode(context, data))
            found |= {} if r1 is None else _retention(f"stream/{key}", r1, first if done else {})
    return found


def newest_recall(context: EvaluationContext, queries: Queries, gallery: Tensor) -> float | None:
    """Return R@1 of captions among videos (V, ...) by the newest parts; None on a worker that only encodes."""
    method, config = context.method, context.config
    given = context.newest if method.declared.task_conditioned_text else None
    features = context.encode_sharded(
        lambda tokens: encode_texts(method, tokens, given, config, context.device), queries.tokens
    )
    if not context.is_scoring:
        return None
    as_matrix = bool(method.declared.normalizes_scores)
    ranked = rank_features(method, [features], [queries], [gallery], config, context.device, as_matrix)
    return metrics.recall(ranked.own, 1)


def _retention(name: str, r1: float, first: Mapping[str, float]) -> dict[str, float]:
    untrained = first.get(f"{name}/r1_untrained", r1)
    found = {f"{name}/r1": r1, f"{name}/r1_untrained": untrained, f"{name}/lost": untrained - r1}
    return found | ({f"{name}/retention": 100.0 * r1 / untrained} if untrained else {})


def distractor_metrics(context: EvaluationContext) -> dict[str, float]:
    """Return the metrics `stream/distractors/...` after the last task; {} on a worker that only encodes."""
    method, config, stored = context.method, context.config, context.galleries
    more = _encode(context, context.data.others[DISTRACTORS])
    queries = context.queries()
    encoded = caption_features(method, queries, config, context.device, context.encode_sharded)
    if not context.is_scoring:
        for _ in encoded:  # the other workers wait for this worker's share
            pass
        return {}
    features, as_matrix = spill_features(encoded, spill.MEMORY_BUDGET), bool(method.declared.normalizes_scores)
    found = {}
    for count in sorted({0, *config.distractors}):
        galleries = with_distractors(stored, more, count)
        ranked = rank_features(method, features, queries, galleries, config, context.device, as_matrix)
        found[f"stream/distractors/r1_{count}"] = metrics.recall(ranked.to_videos, 1)
    return found


def with_distractors(stored: Sequence[Tensor], more: Tensor, count: int) -> list[Tensor]:
    """Return the galleries, with the first `count` distractors (V, ...) added to the newest task's gallery."""
    return [*stored[:-1], torch.cat([stored[-1], more[:count]])]


def _encode(context: EvaluationContext, data: StreamData) -> Tensor:
    """Encode all videos (V, ...) of another stream with the parameters of the newest task."""

    def encode(rows: Sequence[int]) -> Tensor:
        frames = data.videos(0, context.split, rows, context.config.batch_size)
        return encode_videos(context.method, frames, context.newest)

    return context.encode_sharded(encode, range(data.num_videos(0, context.split)))
