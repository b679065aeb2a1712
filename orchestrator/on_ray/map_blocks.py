"""Distribution of work over all nodes of a Ray cluster with Ray Data: blocks of items run on free CPUs or GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
import ray.data
from ray.exceptions import RayError

from ctvr.orchestrator.errors import StoreError

BLOCK = 8  # items per block: small enough for an even distribution, large enough to outweigh the start-up cost
LARGE, MANY = 32, 8192  # block size from MANY items on, which fills one pack of the store
Columns = dict[str, np.ndarray]


def map_blocks(count: int, work: Any, **options: Any) -> Iterator[Columns]:
    """Run `work` on blocks of the indices 0 to count - 1 on all nodes; yield the results of blocks as they finish.

    Args:
        count: number of items.
        work: function of Ray Data's `map_batches`: takes a block {"index": ...} and returns columns of equal length,
            among them "failure": the store's error on that node, or "".
        options: further options of `map_batches`.

    Raises:
        StoreError: for the first failure, and if Ray itself fails.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # our own bar counts videos
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    todo = ray.data.from_items([{"index": index} for index in range(count)], override_num_blocks=num_blocks(count))
    try:
        done = todo.map_batches(work, batch_size=None, **options)
        for block in done.iter_batches(batch_size=None, prefetch_batches=0):
            failed = [text for text in block["failure"].tolist() if text]
            if failed:
                raise StoreError(failed[0])
            yield block
    except RayError as error:
        raise StoreError(f"work on the cluster failed: {last_line(error)}") from None


def num_blocks(count: int) -> int:
    """Return the number of blocks into which `count` items are split."""
    return -(-count // (LARGE if count >= MANY else BLOCK))


def last_line(error: Exception) -> str:
    """Return the last line of one of Ray's long messages, which names the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1][:300]
