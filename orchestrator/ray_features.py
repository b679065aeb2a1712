"""Features of frozen vision blocks as a Ray Data job: one tower on each GPU, or each CPU, of the cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

import numpy as np
import ray
import ray.data
import torch
from ray.exceptions import RayError

from orchestrator.config import Settings
from orchestrator.feature_jobs import Featurize, Featurizer, Progress
from orchestrator.ray_decode import check_nodes
from orchestrator.run import Places
from orchestrator.store import StoreError
from orchestrator.streams import Item

BLOCK = 8  # videos that a tower takes at a time


def featurize_on_nodes(settings: Settings, places: Places, gpus: float = 0.0) -> Featurize:
    """On the connected cluster.

    Args:
        settings: complete and flat.
        places: as every node sees them.
        gpus: of a tower; 0 takes CPUs.

    Raises:
        ConfigError: if the method has no features to make; later, if a node sees another store.
    """
    tower = Featurizer(settings, places, torch.device("cpu"))

    def featurize(items: Sequence[Item], progress: Progress) -> tuple[int, int]:
        if not items:
            return 0, 0
        check_nodes(tower.source)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False  # ours counts videos
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        there = ray.cluster_resources()
        room = int(there.get("GPU", 0.0) / gpus) if gpus else int(there.get("CPU", 1.0))
        blocks = -(-len(items) // BLOCK)
        todo = ray.data.from_items([{"index": index} for index in range(len(items))], override_num_blocks=blocks)
        made = todo.map_batches(
            _Tower,  # type: ignore[arg-type]
            batch_size=None,
            fn_constructor_args=(settings, places, list(items)),
            num_cpus=0.9,  # the job that feeds it needs the rest
            num_gpus=gpus or None,
            concurrency=max(1, min(room, blocks)),
        )
        total = 0
        try:
            for batch in made.iter_batches(batch_size=None, prefetch_batches=0):
                failed = [text for text in batch["failure"].tolist() if text]
                if failed:
                    raise StoreError(failed[0])
                total += int(batch["made"].sum())
                progress(len(batch["made"]))
        except RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise StoreError(f"features on the cluster failed: {lines[-1][:300]}") from None
        return total, len(items) - total

    return featurize


class _Tower:
    """Runs on a node, as an actor."""

    def __init__(self, settings: Settings, places: Places, items: list[Item]) -> None:
        torch.set_num_threads(1)  # one tower on each CPU
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._featurize, self._items = Featurizer(settings, places, device), items

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        made, failure = np.zeros(len(batch["index"]), dtype=bool), ""
        for place, index in enumerate(batch["index"].tolist()):
            try:
                made[place] = self._featurize(self._items[index])
            except StoreError as error:
                failure = f"{error} (on {socket.gethostname()})"
        return {"made": made, "failure": np.array([failure] * len(made), dtype=object)}
