"""Prefetching of batches with background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

GPU_DEFAULT = 2  # prefetch threads for a GPU


def num_prefetch_threads(chosen: int | None, device: torch.device) -> int:
    """Return the number of prefetch threads: with a GPU, reading overlaps with computation."""
    return chosen if chosen is not None else GPU_DEFAULT if device.type == "cuda" else 0


def prefetch(read: Callable[[list[int]], Any], order: list[list[int]], threads: int) -> Iterator[Any]:
    """Yield the results of `read` over `order`, in order, computed ahead by background threads."""
    if threads == 0:
        yield from map(read, order)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Any]] = deque()
        for batch in order:
            waiting.append(pool.submit(read, batch))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
