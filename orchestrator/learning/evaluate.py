"""What is measured after each task: stored features are searched by the captions of all tasks so far.

CTVR (arXiv:2503.10111, section 3): the videos of task t are encoded by the model as it is after task t
and never again; all captions of tasks 1..t search all stored videos. CVLM (BMU-MoCo, section 4): every
task's videos are re-encoded by the present model and searched by that task's captions alone.

Shapes: Q queries, V videos, L text length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from methods.base import Method
from methods.layers.transfer import cut, to_device
from orchestrator.data.batches import Queries
from orchestrator.learning import metrics

_KNOWN_TEXTS: WeakKeyDictionary[Method, dict[bytes, Tensor]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Which queries search which videos, and which epoch is kept."""

    split: Literal["val", "test"] = "test"  # searches optimise on val, tables report test
    select: Literal["last", "best"] = "last"  # best: the epoch with the best R@1 on select_split (marked in tables)
    # Of select=best. same: the evaluated split; none: val where the stream has validation videos, else the same
    select_split: Literal["val", "test", "same"] | None = None
    # Of select=best: a task ends after so many epochs in a row without a better one, counted behind `patience_from`
    patience: int | None = None
    patience_from: int = 10  # epochs of a task that count for nothing
    batch_size: int = 32  # videos or captions encoded at once
    chunk: int = 512  # queries scored at once

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.chunk < 1:
            raise ValueError("batch_size and chunk count items and must be >= 1.")
        if self.patience is not None and (self.patience < 1 or self.select == "last"):
            raise ValueError(
                f"patience counts epochs without a better one (>= 1, got {self.patience}), which select=last does not "
                "look for. Use select=best, or patience=none."
            )
        if self.patience_from < 0:
            raise ValueError(f"patience_from counts epochs and must be >= 0, got {self.patience_from}. Use 0.")

    def selects_on(self, has_val: bool) -> str | None:
        """The split on which a task's best epoch is chosen; None where the last epoch is kept.

        Args:
            has_val: whether the stream has validation videos.
        """
        if self.select == "last":
            return None
        if self.select_split is None:
            return "val" if has_val else self.split
        return self.split if self.select_split == "same" else self.select_split


@dataclass
class Evaluation:
    """Everything that is known after one task."""

    metrics: dict[str, float] = field(default_factory=dict)
    own: list[float] = field(default_factory=list)  # R@1 of task i among its own videos, i = 0..t
    union: list[float] = field(default_factory=list)  # R@1 of task i among all stored videos
    ranks: dict[str, float] = field(default_factory=dict)  # query name -> rank among all stored videos
    own_ranks: dict[str, float] = field(default_factory=dict)  # query name -> rank among its own task's videos


@torch.no_grad()
def encode_texts(
    method: Method, tokens: Tensor, task: int | None, config: EvaluationConfig, device: torch.device
) -> Tensor:
    """Caption features (Q, ...) on the CPU; word features are padded with zeros to the longest.

    Captions of about one length are encoded together, since a pass is as long as its longest caption, and equal ones
    once. A frozen text tower encodes a caption once in a run: after every task all captions so far search again.
    """
    keys = [row.numpy().tobytes() for row in tokens]
    known: dict[bytes, Tensor] = _KNOWN_TEXTS.setdefault(method, {}) if method.frozen_text else {}
    new = {key: row for row, key in enumerate(keys) if key not in known}
    rows = torch.tensor(list(new.values()), dtype=torch.int64)
    rows = rows[tokens[rows].argmax(dim=1).argsort(stable=True)]  # by the position of the end of text
    for part in rows.split(config.batch_size) if len(rows) else ():
        own = tokens[part] if method.reads_pads else cut(tokens[part])
        features = method.encode_text(to_device(own, device), task).float().cpu()
        known.update((keys[row], feature) for row, feature in zip(part.tolist(), features))
    return torch.nn.utils.rnn.pad_sequence([known[key] for key in keys], batch_first=True)


@torch.no_grad()
def score_block(
    method: Method, features: Tensor, gallery: Tensor, config: EvaluationConfig, device: torch.device
) -> Tensor:
    """Scores (Q, V) on the CPU in float32, computed in chunks of queries."""
    gallery = to_device(gallery, device)
    return torch.cat(
        [method.score(to_device(part, device), gallery).float().cpu() for part in features.split(config.chunk)]
    )


def all_scores(
    method: Method,
    queries: Sequence[Queries],
    galleries: Sequence[Tensor],
    config: EvaluationConfig,
    device: torch.device,
    spread: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None,
    is_scoring: bool = True,
) -> Tensor:
    """`Method.score` of all queries of all tasks and all stored videos, (Q, V) or (Q, V, ...), in task order.

    Where the method prompts by task, every caption is encoded once for each task's videos, and the
    blocks are compared as they are (CTVR, section 4.2).

    Args:
        spread: encodes captions on all workers instead of this one; see `workers.Workers.spread`.
        is_scoring: False only helps to encode, and returns an empty tensor.
    """
    tokens = torch.cat([q.tokens for q in queries])
    tokens = cut(tokens) if method.reads_pads else tokens
    run = spread or (lambda encode, rows: encode(rows))
    if method.prompts_by_task:
        blocks = []
        for index, gallery in enumerate(galleries):
            features = run(lambda rows, index=index: encode_texts(method, rows, index, config, device), tokens)  # type: ignore[misc]
            if is_scoring:
                blocks.append(score_block(method, features, gallery, config, device))
    else:
        features = run(lambda rows: encode_texts(method, rows, None, config, device), tokens)
        # One block at a time: galleries of frame features are large
        todo = galleries if is_scoring else ()
        blocks = [score_block(method, features, gallery, config, device) for gallery in todo]
    return torch.cat(blocks, dim=1) if is_scoring else tokens.new_empty(0)


@dataclass(frozen=True)
class Scores:
    """What is ranked: rows are captions, columns videos, both in task order."""

    to_videos: Tensor  # (Q, V): captions search videos
    to_captions: Tensor  # (Q, V): videos search captions
    own: tuple[Tensor, ...]  # of each task its captions and its videos alone, captions search videos
    own_to_captions: tuple[Tensor, ...]  # the same, videos search captions


def final_scores(
    method: Method, scores: Tensor, queries: Sequence[Queries], sizes: Sequence[int], protocol: str
) -> Scores:
    """Let the method calibrate what `all_scores` found, each direction for itself.

    CTVR searches one gallery, so the complete matrix is calibrated and a task's part is cut out of it. In CVLM a
    task's videos are searched by its captions alone, so each task's block is calibrated alone.
    """
    rows, columns = _borders(len(q.target) for q in queries), _borders(sizes)
    parts = [(slice(*rows[i : i + 2]), slice(*columns[i : i + 2])) for i in range(len(sizes))]
    whole = method.calibrate(scores), method.calibrate_for_videos(scores)
    if protocol == "cvlm":
        own = [tuple(each(scores[part]) for part in parts) for each in (method.calibrate, method.calibrate_for_videos)]
    else:
        own = [tuple(each[part] for part in parts) for each in whole]
    return Scores(*whole, *own)


def _borders(sizes: Iterable[int]) -> list[int]:
    return [0, *accumulate(sizes)]


def metrics_of(scores: Scores, queries: Sequence[Queries], sizes: Sequence[int]) -> Evaluation:
    """All metrics of the protocol from the scores of tasks 1..t.

    `v2t` ranks videos by their best caption, as the released codes do; `v2t_captions` ranks the captions themselves.

    Args:
        scores: from `final_scores`.
        queries: of tasks 1..t.
        sizes: number of stored videos of each task.
    """
    rows, columns = _borders(len(q.target) for q in queries), _borders(sizes)
    target = torch.cat([q.target + start for q, start in zip(queries, columns)])
    twin = torch.cat([torch.where(q.twin >= 0, q.twin + start, -1) for q, start in zip(queries, columns)])
    rank = metrics.ranks(scores.to_videos, target)
    directions = {
        "t2v": rank,
        "v2t": metrics.video_ranks(scores.to_captions, target),
        "v2t_captions": metrics.caption_ranks(scores.to_captions, target),
    }
    found = Evaluation()
    for direction, of_all in directions.items():
        for name, value in metrics.summary(of_all).items():
            found.metrics[f"stream/{direction}/{name}"] = value
    if bool((twin >= 0).any()):
        found.metrics["stream/t2v/twin"] = metrics.twin_accuracy(scores.to_videos, target, twin)
    for index, q in enumerate(queries):
        part, task = slice(rows[index], rows[index + 1]), f"task_{index + 1:02d}"
        own = metrics.ranks(scores.own[index], q.target)
        found.own.append(metrics.recall(own, 1))
        found.union.append(metrics.recall(rank[part], 1))
        found.metrics[f"{task}/t2v/r1"] = found.union[-1]
        found.metrics[f"{task}/t2v/r1_own"] = found.own[-1]
        found.metrics[f"{task}/v2t/r1_own"] = metrics.recall(
            metrics.video_ranks(scores.own_to_captions[index], q.target), 1
        )
        found.ranks.update(zip(q.names, rank[part].tolist()))
        found.own_ranks.update(zip(q.names, own.tolist()))
    return found


def add_history(found: Evaluation, own: metrics.Matrix, union: metrics.Matrix, protocol: str) -> None:
    """Metrics that need the rows of earlier tasks: forgetting (and, for CVLM, FR and HM) into `found.metrics`."""
    found.metrics["stream/t2v/bwf"] = metrics.backward_forgetting(own)
    found.metrics["stream/t2v/bwf_union"] = metrics.backward_forgetting(union)
    if protocol == "cvlm":
        found.metrics["stream/t2v/r1_mean"] = sum(own[-1]) / len(own)
        backwards = [value for name, value in found.metrics.items() if name.endswith("/v2t/r1_own")]
        found.metrics["stream/v2t/r1_mean"] = sum(backwards) / len(backwards) if backwards else math.nan
        found.metrics["stream/t2v/fr"] = metrics.forgetting_rate(own)
        found.metrics["stream/t2v/hm"] = metrics.harmonic_mean(own)
