"""Work shared out over all nodes of a Ray cluster, as a Ray Data job: blocks of items go to free CPUs or GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
import ray.data
from ray.exceptions import RayError

from ctvr.orchestrator.errors import StoreError

BLOCK = 8  # items that a node takes at a time: few enough to share out, enough to be worth a start
LARGE, MANY = 32, 8192  # the same of many items: enough for a pack of the store
Columns = dict[str, np.ndarray]


def map_blocks(count: int, work: Any, **options: Any) -> Iterator[Columns]:
    """Blocks of the numbers 0 to count - 1 through `work` on all nodes, as they are finished.

    Args:
        count: items.
        work: of Ray Data's `map_batches`: takes a block {"index": ...} and returns columns of as many rows, among
            them "failure": why the store failed on that node, "" where it did not.
        options: of `map_batches`.

    Raises:
        StoreError: for the first failure, and if Ray itself fails.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # ours counts videos
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
    """Blocks of `count` items."""
    return -(-count // (LARGE if count >= MANY else BLOCK))


def last_line(error: Exception) -> str:
    """What Ray's long texts end with: the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1][:300]
