"""Precomputation of frozen vision features as a Ray Data job, with one tower per GPU or per CPU of the cluster."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import ray
import torch

from ctvr.methods import trust, trusted
from ctvr.orchestrator.addresses import is_address, name_addresses, named_addresses
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.data.device import require_gpu
from ctvr.orchestrator.errors import StoreError
from ctvr.orchestrator.learning.run.featurize import Featurize, Featurizer, Progress
from ctvr.orchestrator.on_ray.decode import check_nodes
from ctvr.orchestrator.on_ray.map_blocks import Columns, map_blocks, num_blocks
from ctvr.orchestrator.store.paths import RunPaths
from ctvr.orchestrator.streams.stream import Item


def featurize_on_nodes(settings: Settings, places: RunPaths, gpus: float = 0.0) -> Featurize:
    """Return a function that computes features on the connected cluster.

    Args:
        settings: complete and flat.
        places: paths, valid on every node.
        gpus: GPUs per tower; 0 uses CPUs.

    Raises:
        ConfigError: if the method has no features to precompute. The returned function raises it if a node has
            another store.
    """
    tower = Featurizer(settings, places, torch.device("cpu"))

    def featurize(items: Sequence[Item], progress: Progress) -> tuple[int, int]:
        if not items:
            return 0, 0
        check_nodes(tower.source)
        there = ray.cluster_resources()
        room = int(there.get("GPU", 0.0) / gpus) if gpus else int(there.get("CPU", 1.0))
        total = 0
        for block in map_blocks(
            len(items),
            _Tower,
            fn_constructor_args=(settings, places, list(items), gpus > 0, (*trusted(), *named_addresses())),
            num_cpus=0.9,  # the task that supplies the data needs the rest
            num_gpus=gpus or None,
            concurrency=max(1, min(room, num_blocks(len(items)))),
        ):
            total += int(block["made"].sum())
            progress(len(block["made"]))
        return total, len(items) - total

    return featurize


class _Tower:
    """Ray actor that holds a frozen tower on a node."""

    def __init__(
        self, settings: Settings, places: RunPaths, items: list[Item], has_gpu: bool, named: Sequence[str]
    ) -> None:
        """Load the tower.

        Args:
            settings: complete and flat.
            places: paths, valid on every node.
            items: videos of the job.
            has_gpu: whether Ray assigned a GPU to this actor. Ray does not hide GPUs from an actor that has none.
            named: classes and addresses that the driver's user trusts.
        """
        trust(named)
        name_addresses(name for name in named if is_address(name))
        torch.set_num_threads(1)  # there is one tower per CPU
        if has_gpu:
            require_gpu()
        device = torch.device("cuda" if has_gpu else "cpu")
        self._featurize, self._items = Featurizer(settings, places, device), items

    def __call__(self, block: Columns) -> Columns:
        made, failure = np.zeros(len(block["index"]), dtype=bool), ""
        try:
            with self._featurize.packer() as packer:
                for place, index in enumerate(block["index"].tolist()):
                    made[place] = self._featurize(self._items[index], packer)
        except StoreError as error:
            failure = f"{error} (on {socket.gethostname()})"
        return {"made": made, "failure": np.array([failure] * len(made), dtype=object)}
