"""Checks of a run's batches before it trains: dropped pairs, and queues that are longer than an epoch."""

from __future__ import annotations

import logging

from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.settings.experiment import Experiment

log = logging.getLogger(__name__)

MAX_DROPPED_FRACTION = 0.05  # share of a task's pairs per epoch that may be dropped to split batches evenly


def check_left_out(data: StreamData, seed: int, workers: Workers) -> None:
    """Log the share of a task's pairs that several workers drop in its first epoch; refuse a large share.

    Raises:
        ConfigError: if a task drops more than `MAX_DROPPED_FRACTION`; the message names the first such task.
    """
    for index, task in enumerate(data.stream.method_tasks):
        pairs, dealt = (sum(data.batch_sizes([index], seed, index, 0, size)) for size in (1, workers.size))
        share = 1 - dealt / pairs
        what = f"{pairs - dealt} of {pairs} pairs of {task.name} ({share:.0%})"
        if share > MAX_DROPPED_FRACTION:
            raise ConfigError(
                f"an epoch would drop {what}, because batches are split evenly over {workers.size} workers",
                "workers",
                remedy="Use fewer workers, another data.batch_size or data.unique_videos=false.",
            )
        if share and workers.rank == 0:
            log.info("an epoch drops %s, because batches are split evenly over workers", what)


def warn_of_long_queues(experiment: Experiment, data: StreamData) -> None:
    """Warn about tasks that have fewer pairs in an epoch than a momentum-contrast queue has keys."""
    for group, config in (("method", experiment.method), ("base", experiment.base)):
        if not (queue := getattr(config, "queue_size", 0)):
            continue
        tasks = range(len(data.stream.method_tasks))
        pairs = [sum(data.batch_sizes([index], experiment.run.seed, index, 0)) for index in tasks]
        if short := [data.stream.method_tasks[index].name for index in tasks if pairs[index] < queue]:
            log.warning(
                "%s.queue_size: %d is more than the %d items of an epoch of %s, so items are compared with older "
                "keys of themselves. Use a smaller %s.queue_size.",
                *(group, queue, min(pairs), short[0] if len(short) == 1 else f"{len(short)} tasks (the smallest)"),
                group,
            )
