"""Drift of the first task's queries in feature space while later tasks are learned (CTVR, figure 3).

Shapes: T tasks, N queries of the first task, M of the last, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.retrieval.model import Model


@dataclass(frozen=True)
class Drift:
    """Unit-length features projected to their first two principal components."""

    points: np.ndarray  # (T, N, 2): the first task's queries after each task
    others: np.ndarray  # (M, 2): the last task's queries after it
    cosines: tuple[float, ...]  # (T,): mean cosine similarity of the first task's queries to their state after task 1
    explained: float  # share of the variance in these two directions


def text_drift(states: Iterable[Model], number: int) -> Drift:
    """Return positions of the first task's queries in a run's models after each task, and of the last task's queries.

    A query is the first caption of a video, encoded for its own task's videos. If a method keeps several vectors per
    caption, they are concatenated.

    Args:
        states: the model after task 1, 2, ..., as from `jobs.load_model.load_task_checkpoints`.
        number: queries per task, at most; equal captions count once.

    Raises:
        ConfigError: if there are fewer than two tasks.
    """
    found: list[Tensor] = []
    last = torch.empty(0)
    for state in states:
        blocks = state.gallery()
        found.append(_features(state, 0, number))
        if len(found) == len(blocks):
            last = _features(state, len(blocks) - 1, number)
    if len(found) < 2:
        fault = "the run has learned one task only, and drift is the change after a later task"
        raise ConfigError(fault, "plot drift", remedy="Pass a run of two or more tasks.")
    points = torch.stack(found)
    cosines = F.cosine_similarity(points, points[:1], dim=-1).mean(dim=1)
    flat, explained = principal(torch.cat([points.flatten(0, 1), last]).double().numpy())
    split = len(last)
    return Drift(
        flat[:-split].reshape(*points.shape[:2], 2), flat[-split:], tuple(map(float, cosines.double())), explained
    )


def principal(features: np.ndarray) -> tuple[np.ndarray, float]:
    """Project rows (R, d) to their two principal directions (R, 2); also return the share of variance in them.

    The sign of a direction is arbitrary, so its largest entry is made positive to make figures reproducible.
    """
    centred = features - features.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    two = directions[:2]
    two = two * np.sign(two[np.arange(len(two)), np.abs(two).argmax(axis=1)])[:, None]
    variance = sizes**2
    return centred @ two.T, float(variance[:2].sum() / max(variance.sum(), np.finfo(float).tiny))


def _features(model: Model, task: int, number: int) -> Tensor:
    captions = dict.fromkeys(item.captions[0] for item in model.gallery()[task].items)
    return F.normalize(model.encode_text(list(captions)[:number], task).flatten(1), dim=-1)
