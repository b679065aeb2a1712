"""Measurement of speed, waiting time and memory in every training epoch. Results do not depend on it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ctvr.methods.base import Batch
from ctvr.orchestrator.data.device import peak_memory_mb, reset_peak_memory

if TYPE_CHECKING:
    from ctvr.orchestrator.learning.training.distributed import Workers

CLIPS, WAIT, MEMORY = "perf/clips_per_second", "perf/data_wait_share", "perf/train_memory_mb"


class EpochTimer:
    """Measures one epoch of one worker."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clips, self._waited = 0, 0.0
        reset_peak_memory(device)
        self._start = time.perf_counter()

    def iterate(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches; count their videos and the time until each is ready."""
        known = iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(known, None)
            self._waited += time.perf_counter() - asked
            if batch is None:
                return
            self._clips += len(batch.video_ids)
            yield batch

    def read(self, workers: Workers) -> dict[str, float]:
        """Return the epoch's measurements; every worker must call it.

        Returns:
            `perf/clips_per_second`: training videos of all workers per second; `perf/data_wait_share`: share of the
            epoch in which the host waits for a batch, in [0, 1]; `perf/train_memory_mb`: `peak_memory_mb`. The last two
            are means over workers.
        """
        seconds = max(time.perf_counter() - self._start, 1e-9)
        own = {
            CLIPS: self._clips / seconds,
            WAIT: min(self._waited / seconds, 1.0),
            MEMORY: peak_memory_mb(self._device),
        }
        found = workers.all_reduce_mean(own)
        return {**found, CLIPS: found[CLIPS] * workers.size}


def training_costs(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the cost metrics of a whole run, from `RunState.timing`; empty if nothing was trained.

    Returns:
        `cost/train_clips_per_second`: the median over epochs; `cost/train_memory_mb`: the largest peak.
    """
    if not epochs:
        return {}
    speeds = sorted(epoch[CLIPS] for epoch in epochs)
    return {
        "cost/train_clips_per_second": speeds[len(speeds) // 2],
        "cost/train_memory_mb": max(epoch[MEMORY] for epoch in epochs),
    }
