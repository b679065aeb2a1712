"""A bundle of three rows with invented ranks: 3 tasks, 2 captions of each of 18 videos."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ctvr.orchestrator.bundles.bundle import ALL, OWN, Bundle, digest
from ctvr.orchestrator.bundles.check import seal

TASKS, VIDEOS, CAPTIONS = 3, 6, 2
ROWS = (("zero_shot", 0, 0.0), ("clip4clip", 0, 1e6), ("clip4clip", 1, 1e6), ("lwf", 0, 1e6), ("lwf", 1, 1e6))


def make_bundle() -> Bundle:
    rng = np.random.default_rng(0)
    names = [(f"v{task}{n}#{c}", task) for task in range(TASKS) for n in range(VIDEOS) for c in range(CAPTIONS)]
    tasks = [task for _, task in names]
    better = rng.integers(0, 2 + 6 * np.arange(1, len(ROWS) + 1)[:, None, None], (len(ROWS), TASKS, len(names)))
    equal = rng.integers(0, 8, better.shape) == 0
    ranks = np.stack([better, equal], axis=1).astype(np.uint8)
    ranks *= np.array(tasks) <= np.arange(TASKS)[:, None]
    runs = [describe(*row, place) for place, row in enumerate(ROWS)]
    about = {"format": 1, "name": "small", "queries": [name for name, _ in names], "orders": [tasks], "runs": runs}
    return seal(about, {ALL: ranks, OWN: ranks // 2})


def describe(method: str, seed: int, parameters: float, place: int) -> dict[str, Any]:
    facts = {f"ctvr.{fact}": "false" for fact in ("is_joint", "keeps_videos", "trains_on_searched")}
    of = {"ctvr.method": method, "ctvr.stream": "small", "ctvr.protocol": "ctvr", "ctvr.complete": "true"}
    return {
        "id": f"{place:032x}",
        "name": f"{method}-seed{seed}",
        "key": f"{place:064x}",
        "settings": {"method": method, "seed": str(seed), "stream": "small.json", "optim.epochs": "2"},
        "tags": {**facts, **of, "ctvr.stream_content": "abc"},
        "parameters": parameters,
        "made_of": {"stream": "abc", "weights": "def", "code of the method": "012"},
        "commits": [f"{place}{task}" for task in range(TASKS)],
        "versions": {"python": "3.11"},
        "order": 0,
    }


def copy_of(bundle: Bundle) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return copy.deepcopy(dict(bundle.about)), {name: each.copy() for name, each in bundle.ranks.items()}


def with_digest(about: dict[str, Any], ranks: dict[str, np.ndarray]) -> Bundle:
    """Return a bundle whose digest is right and whose table may be wrong."""
    return Bundle({**about, "digest": digest(about, ranks)}, ranks)
