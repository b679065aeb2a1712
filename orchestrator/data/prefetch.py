"""Prefetching of batches with background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ctvr.orchestrator.processes import beat

GPU_DEFAULT = 2  # prefetch threads for a GPU


def num_prefetch_threads(chosen: int | None, device: torch.device) -> int:
    """Return the number of prefetch threads: `chosen`, or by default GPU_DEFAULT for a GPU and 0 for a CPU."""
    return chosen if chosen is not None else GPU_DEFAULT if device.type == "cuda" else 0


def prefetch(read: Callable[[list[int]], Any], order: list[list[int]], threads: int) -> Iterator[Any]:
    """Yield the result of `read` for each batch of `order`, in order; background threads compute them ahead."""
    if threads == 0:
        for batch in order:
            beat()
            yield read(batch)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Any]] = deque()
        for batch in order:
            beat()
            waiting.append(pool.submit(read, batch))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
