"""Reading a little ahead of what is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

GPU_DEFAULT = 2  # threads that read for one, if nobody chooses


def num_prefetch_threads(chosen: int | None, device: torch.device) -> int:
    """Threads that read ahead: a GPU works beside its host, and should wait for no batch but the first."""
    return chosen if chosen is not None else GPU_DEFAULT if device.type == "cuda" else 0


def prefetch(read: Callable[[list[int]], Any], order: list[list[int]], threads: int) -> Iterator[Any]:
    """Results of `read` over `order`, in order, computed up to two batches ahead by background threads."""
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
