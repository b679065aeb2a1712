"""Tasks from clusters of captions' vectors: Lloyd's k-means, initialized by k-means++ (Arthur & Vassilvitskii, 2007).

Vectors are rounded to whole numbers whose sums and products are exact in float64, so that the
clusters do not depend on the order of additions or the processor.

Shapes: V videos, L vectors of a caption, d dimensions of a vector, K clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.errors import ConfigError

BITS = 18  # per element: the inner product of two vectors of up to 2**17 elements is below 2**53
SEED, MOST_ROUNDS = 0, 100


def cluster_tasks(
    table: Path,
    rows: Sequence[tuple[Mapping[str, str], Sequence[str], object]],
    number: int,
    vectors: Mapping[str, np.ndarray],
) -> tuple[list[str], list[str]]:
    """Return the name of the task of each row, and the task names in order of first appearance in the table.

    A video's vector is the mean direction of its captions. The clusters are computed from training
    videos; each other video joins the nearest cluster.

    Args:
        table: the file, for messages.
        rows: cells, captions, and the key of the video, for each row.
        number: K.
        vectors: caption -> its vectors (L, d).

    Raises:
        ConfigError: if the training videos have fewer than `number` different vectors.
    """
    captions: dict[object, list[str]] = {}
    splits: dict[object, str] = {}
    for cells, texts, key in rows:
        captions.setdefault(key, []).extend(texts)
        splits[key] = cells["split"]
    sums = [
        _directions(np.stack([_directions(vectors[caption]).sum(axis=0) for caption in texts])).sum(axis=0)
        for texts in captions.values()
    ]
    points = _directions(np.stack(sums))
    is_training = np.array([split == "train" for split in splits.values()])
    distinct = len(np.unique(points[is_training], axis=0))
    if distinct < number:
        fault = f"exceeds the {distinct} different vectors of training videos"
        remedy = "Use fewer clusters." if distinct else "Mark some videos as train."
        raise ConfigError(fault, f"{table}: tasks=clusters:{number}", remedy=remedy)
    labels = np.empty(len(points), dtype=int)
    labels[is_training], centers = _k_means(points[is_training], number)
    labels[~is_training] = _squares(points[~is_training], centers).argmin(axis=1)
    place = {label: str(at + 1) for at, label in enumerate(dict.fromkeys(labels.tolist()))}
    names = {key: place[label] for key, label in zip(captions, labels.tolist())}
    return [names[key] for _, _, key in rows], list(place.values())


def _directions(rows: np.ndarray) -> np.ndarray:
    """Return (n, d) whole numbers in float64: each row is scaled to the length 2**BITS; a row of zeros is unchanged."""
    largest = np.abs(rows.astype(np.float64)).max(axis=1, keepdims=True)
    whole = np.rint(rows / np.where(largest > 0, largest, 1) * 2**BITS)
    length = np.sqrt((whole * whole).sum(axis=1, keepdims=True))
    return np.rint(whole / np.where(length > 0, length, 1) * 2**BITS)


def _squares(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the squared distances (n, K) of points and centers, whole numbers."""
    lengths = (points * points).sum(axis=1)[:, None] + (centers * centers).sum(axis=1)
    found: np.ndarray = lengths - 2 * (points @ centers.T)
    return found


def _k_means(points: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cluster of each point (V,) and the centers (K, d), whole numbers; no cluster is empty."""
    centers = _start(points, number)
    labels = np.full(len(points), -1)
    for _ in range(MOST_ROUNDS):
        squares = _squares(points, centers)
        found = squares.argmin(axis=1)
        nearest = squares[np.arange(len(points)), found]
        counts = np.bincount(found, minlength=number)
        for empty in np.flatnonzero(counts == 0):  # it receives the farthest point of a cluster with several points
            farthest = int(np.where(counts[found] > 1, nearest, -1).argmax())
            counts[found[farthest]] -= 1
            counts[empty], found[farthest] = 1, empty
        if np.array_equal(found, labels):
            break
        labels = found
        centers = np.stack([np.rint(points[labels == k].sum(axis=0) / counts[k]) for k in range(number)])
    return labels, centers


def _start(points: np.ndarray, number: int) -> np.ndarray:
    """Sample `number` distinct points (K, d) in proportion to their squared distance from the nearest earlier point."""
    generator = np.random.default_rng(SEED)
    chosen = [int(generator.integers(len(points)))]
    nearest: Any = np.inf
    while len(chosen) < number:
        nearest = np.minimum(nearest, _squares(points, points[chosen[-1:]])[:, 0])
        sums = np.cumsum(nearest.astype(np.int64))
        chosen.append(int(np.searchsorted(sums, generator.integers(sums[-1]), side="right")))
    return points[chosen]
