"""Protocols of streams: re-encoding of galleries, metrics, and the score that selects an epoch.

The loop uses the protocol object of its stream (`protocol_of`) and does not depend on its name. Another package adds a
protocol as a subclass of `CTVR` or `CVLM`, by an entry point `ctvr.protocols` (docs/protocol.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctvr.methods.base import Method
from ctvr.methods.images import knn
from ctvr.methods.layers.transfer import trim_padding
from ctvr.methods.plug_ins import installed
from ctvr.orchestrator.data.batches import Queries, StreamData
from ctvr.orchestrator.data.images import ImageData
from ctvr.orchestrator.data.questions import QuestionData, Questions
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.cost import task_costs
from ctvr.orchestrator.learning.evaluation.encode_videos import encode_videos
from ctvr.orchestrator.learning.evaluation.evaluate import Scores, add_history, compute_ranks, metrics_of
from ctvr.orchestrator.learning.evaluation.metrics import Matrix
from ctvr.orchestrator.learning.evaluation.oracle import oracle_metrics
from ctvr.orchestrator.learning.evaluation.own_metrics import own_metrics
from ctvr.orchestrator.learning.record.run_state import Evaluation
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Stream


@dataclass(frozen=True)
class EvaluationContext:
    """Inputs to an evaluation after a task."""

    method: Method
    data: StreamData
    task: int  # 0-based
    split: str
    galleries: Sequence[Tensor]  # on the CPU, (V, ...) of each task so far
    config: EvaluationConfig
    device: torch.device
    encode_sharded: Callable[[Callable[[Any], Tensor], Any], Tensor]  # encodes on all workers, for the one that scores
    is_scoring: bool  # whether this worker scores; the others only encode
    newest: int  # 0-based index of the method's task that began last

    def queries(self) -> list[Queries]:
        """Return the captions of each task so far."""
        asked = [self.data.queries(index, self.split) for index in range(self.task + 1)]
        return [replace(q, task=min(q.task, self.newest)) for q in asked]


class Protocol(ABC):
    """Evaluation protocol of a kind of stream: re-encoded galleries, metrics, and the score that selects an epoch."""

    name: ClassVar[str]
    kind: ClassVar[str]  # name of a built-in protocol, also in a plug-in's subclass; selects the columns of tables
    reencodes_gallery: ClassVar[bool] = False  # whether the current model encodes all tasks' items after each task
    gain: ClassVar[tuple[str, str] | None] = None  # metric, and the name of its gain over the untrained backbone

    @abstractmethod
    def measure(self, context: EvaluationContext) -> Evaluation | None:
        """Return the results after a task; None if `context.is_scoring` is False."""

    @abstractmethod
    def add_history(self, found: Evaluation, own: Matrix, union: Matrix) -> None:
        """Add the metrics that need earlier tasks (forgetting) to `found.metrics`."""

    @abstractmethod
    def score(self, found: Evaluation) -> float:
        """Return the score that selects the best epoch of a task."""

    @abstractmethod
    def ranks(self, found: Evaluation) -> dict[str, Rank]:
        """Map each query to its position in the protocol's gallery: counts of better and of equal candidates."""


class Retrieval(Protocol):
    """Protocol in which captions search videos."""

    gain = ("stream/t2v/r1", "stream/t2v/r1_gain")

    def measure(self, context: EvaluationContext) -> Evaluation | None:
        queries, config = context.queries(), context.config
        items = [context.data.stream.items(index, context.split) for index in range(context.task + 1)]
        more: dict[str, float] = {}

        def measure_more(scores: Scores) -> None:
            more.update(own_metrics(config.metrics, scores, items, self.kind))

        ranked = compute_ranks(
            context.method,
            queries,
            context.galleries,
            config,
            context.device,
            self.kind,
            context.encode_sharded,
            is_scoring=context.is_scoring,
            on_scores=measure_more if config.metrics else None,
        )
        found = None if ranked is None else metrics_of(ranked, queries, [len(gallery) for gallery in context.galleries])
        if found is not None:
            found.metrics.update(more)
        if config.oracle_task:
            about = context.method, queries, context.galleries, ranked, config
            told = oracle_metrics(*about, context.device, context.encode_sharded)
            if found is not None:
                found.metrics.update(told)
        if config.costs and found is not None:
            costs = task_costs(context.method, context.data, context.split, context.device, context.newest + 1)
            found.metrics.update(costs)
        return found

    def add_history(self, found: Evaluation, own: Matrix, union: Matrix) -> None:
        add_history(found, own, union, self.kind)


class CTVR(Retrieval):
    """Videos are encoded once, after their task; all captions so far search all of them (CTVR, section 3)."""

    name = kind = "ctvr"

    def score(self, found: Evaluation) -> float:
        return found.metrics["stream/t2v/r1"]  # on the cumulative gallery, which equals the task's own in task 1

    def ranks(self, found: Evaluation) -> dict[str, Rank]:
        return found.ranks


class CVLM(Retrieval):
    """The current model encodes each task's videos, which only captions of that task search (BMU-MoCo, section 4)."""

    name = kind = "cvlm"
    reencodes_gallery = True

    def score(self, found: Evaluation) -> float:
        return found.own[-1]

    def ranks(self, found: Evaluation) -> dict[str, Rank]:
        return found.own_ranks


class AccuracyProtocol(Protocol):
    """Accuracies instead of retrieval: `own` and `union` are two accuracies (%) of each task with the current model."""

    reencodes_gallery = True
    family: ClassVar[str]  # part of the names of its metrics: stream/<family>/accuracy
    knn_metric: ClassVar[str]  # suffix of the second accuracy's name

    def add_history(self, found: Evaluation, own: Matrix, union: Matrix) -> None:
        for table, name in ((own, ""), (union, self.knn_metric)):
            found.metrics[f"stream/{self.family}/accuracy{name}"] = knn.mean_accuracy(table)
            if len(table) > 1:  # forgetting is undefined after one task
                found.metrics[f"stream/{self.family}/forgetting{name}"] = knn.forgetting(table)
                found.metrics[f"stream/{self.family}/forgetting{name}_best"] = knn.forgetting(table, of_best=True)

    def score(self, found: Evaluation) -> float:
        return found.own[-1]

    def ranks(self, found: Evaluation) -> dict[str, Rank]:
        return {}


class UCL(AccuracyProtocol):
    """k-nearest-neighbor accuracy among a task's training images, as in divyam3897/UCL@cfaa81d.

    `own` holds the accuracy with the release's k, the number of tasks so far. `union` holds the accuracy with a
    constant k: `evaluation.knn_k` (at most all training images of the task), or `evaluation.knn_share` of the images.
    """

    name, family, knn_metric = "ucl", "knn", "_fixed"
    kind = name

    def measure(self, context: EvaluationContext) -> Evaluation | None:
        assert isinstance(context.data, ImageData)
        found, data = Evaluation(), context.data
        for task, test in enumerate(context.galleries):
            bank = context.encode_sharded(partial(self._encode, context, task), range(data.num_videos(task, "train")))
            if not context.is_scoring:
                continue
            labels, classes = data.labels(task, "train"), len(data.stream.tasks[task].categories)
            truth = data.labels(task, context.split)
            for row, k, name in (
                (found.own, knn.released_k(context.task + 1), "accuracy"),
                (found.union, context.config.fixed_k(len(bank)), "accuracy_fixed"),
            ):
                row.append(knn.accuracy(knn.votes(test, bank, labels, k, classes), truth))
                found.metrics[f"task_{task + 1:02d}/knn/{name}"] = row[-1]
        return found if context.is_scoring else None

    def _encode(self, context: EvaluationContext, task: int, rows: Sequence[int]) -> Tensor:
        batches = context.data.videos(task, "train", rows, context.config.batch_size)
        return encode_videos(context.method, batches, task)


class QA(AccuracyProtocol):
    """Questions answered from the list of training answers so far; an answer is correct if the strings are equal.

    `own` holds the accuracy (%) among the answers of a question's task, `union` among the answers of all tasks so far.
    The current model encodes each task's videos.
    """

    name, family, knn_metric = "qa", "qa", "_all"
    kind = name

    def measure(self, context: EvaluationContext) -> Evaluation | None:
        assert isinstance(context.data, QuestionData)
        found, data = Evaluation(), context.data
        everything = data.candidates(range(context.task + 1))
        for task, videos in enumerate(context.galleries):
            asked, own = data.questions(task, context.split), data.candidates([task])
            in_own = self._accuracy(context, asked, videos, own)
            in_all = in_own if own == everything else self._accuracy(context, asked, videos, everything)
            for row, accuracy, name in ((found.own, in_own, "accuracy"), (found.union, in_all, "accuracy_all")):
                row.append(accuracy)
                found.metrics[f"task_{task + 1:02d}/qa/{name}"] = accuracy
        return found if context.is_scoring else None

    def _accuracy(self, context: EvaluationContext, asked: Questions, videos: Tensor, answers: Sequence[str]) -> float:
        assert isinstance(context.data, QuestionData)
        ids = context.data.answer_ids(answers).to(context.device)
        best = context.encode_sharded(partial(self._best, context, asked, videos, ids), range(len(asked.answers)))
        if not context.is_scoring:  # a worker that only encodes has no answers
            return math.nan
        return 100 * sum(answers[place] == right for place, right in zip(best.tolist(), asked.answers)) / len(best)

    @torch.no_grad()
    def _best(
        self, context: EvaluationContext, asked: Questions, videos: Tensor, answers: Tensor, rows: Sequence[int]
    ) -> Tensor:
        """Return the most likely answer (N,) to each of the questions `rows`."""
        found, size = [], context.config.batch_size
        for start in range(0, len(rows), size):
            some = list(rows[start : start + size])
            seen = videos[asked.video[some]].to(context.device)
            tokens = trim_padding(asked.tokens[some]).to(context.device)
            found.append(context.method.rank_answers(tokens, seen, answers)[:, 0].cpu())
        return torch.cat(found)


PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in (CTVR(), CVLM(), UCL(), QA())}


def protocol_of(stream: Stream) -> Protocol:
    """Return the protocol of a stream.

    Raises:
        ConfigError: if another package's class cannot be loaded, or is not a subclass of `CTVR` or `CVLM`.
    """
    name = stream.protocol
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    if (point := installed("protocols").get(name)) is None:
        raise ConfigError(f"{name} of stream {stream.name} is not installed", "protocol", remedy="Install its package.")
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name} of {point.value} cannot be loaded ({error})", "protocol", remedy="Reinstall the package."
        ) from error
    if not (isinstance(found, type) and issubclass(found, CTVR | CVLM)):
        raise ConfigError(
            f"{point.value} is not a protocol. Derive it from CTVR or CVLM of {__name__}.",
            "protocol",
        )
    return found()
