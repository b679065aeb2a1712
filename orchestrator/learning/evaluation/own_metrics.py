"""Metrics of other packages (`evaluation.metrics`), computed from the scores by which an evaluation ranks videos.

    metric(scores, queries, items) -> {"ndcg10": 77.97}          recorded as stream/t2v/ndcg10

    scores    (Q, V) float32 on the CPU: final scores of captions and videos, higher is better, -inf instead of NaN
    queries   Q `Query`, in the order of the rows
    items     V `Item` (streams/stream.py), in the order of the columns

In the protocol `ctvr` a metric is computed once, for all videos so far. In `cvlm` it is computed for the captions and
videos of each task, and the mean over tasks is recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.evaluate import Scores
from ctvr.orchestrator.settings.evaluation_config import METRICS
from ctvr.orchestrator.streams.metric_names import OF_QUERIES
from ctvr.orchestrator.streams.stream import Item


@dataclass(frozen=True)
class Query:
    """A caption that searches videos."""

    caption: str
    target: int  # column of the caption's own video
    relevant: tuple[int, ...]  # columns of all relevant videos; only `target` if the manifest lists none


def try_metrics(names: Sequence[str], items: Sequence[Item]) -> None:
    """Compute metrics from random scores of the first task's videos, to refuse a faulty metric before training."""
    captions = sum(len(item.captions) for item in items)
    scores = torch.rand(captions, len(items), generator=torch.Generator().manual_seed(0))
    own_metrics(names, Scores(scores, scores, (scores,), (scores,)), [items], "ctvr")


def own_metrics(
    names: Sequence[str], scores: Scores, items: Sequence[Sequence[Item]], protocol: str
) -> dict[str, float]:
    """Return the values of all metrics, as `stream/t2v/...`.

    Args:
        names: `evaluation.metrics`.
        scores: final scores of all tasks so far.
        items: videos of each task so far; the rows of the scores are their captions, in this order.
        protocol: kind of the stream's protocol, `ctvr` or `cvlm`.

    Raises:
        ConfigError: if a metric cannot be loaded, raises an exception or returns something else than new names with
            finite values.
    """
    galleries = [(scores.to_videos, [item for part in items for item in part])]
    if protocol == "cvlm":
        galleries = [(part, list(own)) for part, own in zip(scores.own, items)]
    found: dict[str, float] = {}
    for name in names:
        function = METRICS.load(name)
        assert function is not None  # no metric is built in
        parts = [
            _checked(name, METRICS.call(name, function, _without_nan(matrix), _queries(videos), videos), found)
            for matrix, videos in galleries
        ]
        if any(part.keys() != parts[0].keys() for part in parts):
            raise _refusal(name, "returns other names for other tasks", list(parts[-1]))
        found |= {key: sum(part[key] for part in parts) / len(parts) for key in parts[0]}
    return {f"stream/t2v/{key}": value for key, value in found.items()}


def _queries(items: Sequence[Item]) -> list[Query]:
    """Return the captions of videos in the order of `StreamData.queries`."""
    columns = {item.video: column for column, item in enumerate(items)}
    found = []
    for column, item in enumerate(items):
        for caption, listed in zip(item.captions, item.relevant or [(item.video,)] * len(item.captions)):
            found.append(Query(caption, column, tuple(columns[video] for video in listed if video in columns)))
    return found


def _without_nan(scores: Tensor) -> Tensor:
    """Return a copy, which the metric may change, with the order of scores by which ranks are computed."""
    return scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)


def _checked(name: str, result: Any, before: Mapping[str, float]) -> dict[str, float]:
    """Return the result of a metric as finite numbers with new names; `before` has the results of other metrics."""
    if not isinstance(result, Mapping) or not result:
        raise _refusal(name, f"returns {type(result).__name__}, not a dictionary of names and numbers", result)
    for key, value in result.items():
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", key):
            raise _refusal(name, "returns a name with other characters than letters, digits, _, - and .", key)
        if key in OF_QUERIES or key in before:
            raise _refusal(name, "returns a name that another metric has", key)
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise _refusal(name, f"returns {key} that is not a number", value) from error
        if not math.isfinite(number):
            raise _refusal(name, f"returns {key} that is not finite", number)
    return {key: float(value) for key, value in result.items()}


def _refusal(name: str, fault: str, got: object) -> ConfigError:
    remedy = "Return a dictionary of new names and finite numbers (docs/metrics.md)."
    return ConfigError(f"{name} {fault}", METRICS.setting, got, remedy)
