"""Rows over several task orders of a stream: grouping of their runs, and statistics over orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ctvr.orchestrator.streams.load import split_order

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord


def order_of(run: RunRecord) -> int:
    """Return the seed of the task order of a run, or 0 for the stream's own order."""
    return split_order(str(run.settings.get("stream", "")))[1]


def in_any_order(name: str, value: object) -> str:
    """Return a setting's value without the task order, so that it is equal for all orders."""
    return split_order(str(value))[0] if name == "stream" else str(value)


def content_of(run: RunRecord) -> str:
    """Return the order-independent digest of the stream of a run. Older runs have only an order-dependent digest."""
    return run.tags.get("ctvr.stream_content") or run.tags.get("ctvr.stream_digest", "")


def seed_names(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the seed of each run, with its task order (`1@2`) if the runs have several orders."""
    several = len({order_of(run) for run in runs}) > 1
    seeds = [str(run.settings.get("seed", "0")) for run in runs]
    return tuple(f"{seed}@{order_of(run)}" if several else seed for seed, run in zip(seeds, runs))


def by_order(
    runs: Sequence[RunRecord], measures: Mapping[str, str], finals: Sequence[Mapping[str, float]]
) -> dict[str, tuple[tuple[int, float, float], ...]]:
    """Return the metrics of a row in each task order, or {} if all runs have one order.

    Args:
        measures: column -> metric.
        finals: for each run, metric -> value after the last task.

    Returns:
        Column -> (order, mean over seeds, sample standard deviation).
    """
    orders = sorted({order_of(run) for run in runs})
    if len(orders) < 2:
        return {}
    found = {}
    for column, metric in measures.items():
        points = []
        for order in orders:
            own = [final.get(metric, np.nan) for run, final in zip(runs, finals) if order_of(run) == order]
            points.append((order, float(np.mean(own)), float(np.std(own, ddof=1)) if len(own) > 1 else np.nan))
        found[column] = tuple(points)
    return found


def mark(r1: Sequence[tuple[int, float, float]]) -> str:
    """Return the footnote of a row over several task orders, from (order, mean, std) of R@1, or "" without orders."""
    if not r1:
        return ""
    means = [mean for _, mean, _ in r1]
    return (
        f"mean over {len(means)} task orders: R@1 is {min(means):.2f} to {max(means):.2f}, with a standard "
        f"deviation of {np.std(means, ddof=1):.2f} between orders; ± is over seeds and orders"
    )
