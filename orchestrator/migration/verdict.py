"""Estimates with 95 % intervals of each way to switch embedders, and the rule of the verdict.

Queries of one group (the captions of a video) count as one sample, so variances are computed from sums over groups.

Shapes: Q queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy.special import betaincinv
from torch import Tensor

from ctvr.orchestrator.migration.search import ALL, BOTH, STAY, Way

Z = 1.96  # 95 %


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def shown(self, sign: str = "") -> str:
        """Format the estimate in percent; `sign` is "+" for a difference."""
        if math.isnan(self.value):
            return "n/a"
        value, low, high = (f"{100 * each:{sign}.1f}" for each in self)
        return f"{value} [{low}, {high}]"


def mean_of(values: Tensor, group: Tensor) -> Estimate:
    """Estimate the mean of values (Q,) in [0, 1] with the interval of Korn and Graubard (1998).

    It is the Clopper-Pearson interval for the number of draws whose binomial variance is the variance of the mean
    over groups, or for the number of groups if all values are 0 or all are 1. It also covers a mean near 0 or 1.
    """
    mean = float(values.mean())
    variance = float(_sums(values - mean, group).square().sum()) * _small(group) / len(values) ** 2
    draws = mean * (1 - mean) / variance if variance > 1e-12 and 0 < mean < 1 else len(group.unique())
    hits, missed = mean * draws, (1 - mean) * draws
    low = float(betaincinv(hits, missed + 1, 0.025)) if mean > 0 else 0.0
    return Estimate(mean, low, float(betaincinv(hits + 1, missed, 0.975)) if mean < 1 else 1.0)


def ratio_of(values: Tensor, reference: Tensor, group: Tensor) -> Estimate:
    """Estimate mean(values) / mean(reference) of paired values (Q,), by linearization.

    The variance adds a half query lost and a half query won (Agresti and Min 2005), so that the interval of two equal
    lists has a width. NaN if the reference is 0.
    """
    total = float(reference.sum())
    if not total:
        return Estimate(math.nan, math.nan, math.nan)
    ratio = float(values.sum()) / total
    error = math.sqrt(float(_sums(values - ratio * reference, group).square().sum()) * _small(group) + 1) / total
    return Estimate(ratio, ratio - Z * error, ratio + Z * error)


def difference_of(values: Tensor, reference: Tensor, group: Tensor) -> Estimate:
    """Estimate mean(values - reference) of paired values (Q,); the variance is as in `ratio_of`."""
    gaps = values - reference
    mean = float(gaps.mean())
    error = math.sqrt(float(_sums(gaps - mean, group).square().sum()) * _small(group) + 1) / len(gaps)
    return Estimate(mean, mean - Z * error, mean + Z * error)


def _sums(values: Tensor, group: Tensor) -> Tensor:
    return torch.bincount(group, weights=values.double())


def _small(group: Tensor) -> float:
    groups = len(group.unique())
    return groups / max(groups - 1, 1)


@dataclass(frozen=True)
class Row:
    """A row of the table: one way to switch embedders.

    Attributes:
        metrics: estimates of R@1, R@5 and R@10, or of overlap@10 alone.
        kept: the last metric relative to its value after all items are re-encoded.
        items: number of items to encode.
    """

    way: Way
    metrics: tuple[Estimate, ...]
    kept: Estimate
    items: int


def make_rows(found: dict[Way, Tensor], group: Tensor, items: int) -> list[Row]:
    """Return a row for each way to switch embedders, from its search results (`measure`).

    Args:
        group: (Q,) group of each query.
        items: items of the whole old index.
    """
    reference = found[ALL][:, -1]
    rows = []
    for way, values in found.items():
        metrics = tuple(mean_of(each, group) for each in values.unbind(dim=1))
        if way == ALL and len(metrics) == 1:  # the reference itself
            metrics = (Estimate(1, 1, 1),)
        share = 100 if way == BOTH else int(way[1]) if way[1].isdigit() else 0
        kept = Estimate(1, 1, 1) if way == ALL else ratio_of(values[:, -1], reference, group)
        rows.append(Row(way, metrics, kept, items * share // 100))
    return rows


class Verdict(NamedTuple):
    """The recommended way to switch embedders, and remarks of one line each."""

    word: str  # stay, both, map queries, map index or re-encode
    way: Way
    remarks: tuple[str, ...]


def decide(
    found: dict[Way, Tensor], group: Tensor, candidates: Sequence[Way], tolerance: float, metric: str
) -> Verdict:
    """Choose a way to switch embedders by the rule of docs/migrate.md.

    Args:
        found: way -> search results of each query (`measure`); the last column decides.
        group: (Q,) group of each query.
        candidates: ways from the cheapest to the most expensive, without "stay", "both" and re-encoding all.
        tolerance: share of the metric after re-encoding all items that may be lost, in (0, 1).
        metric: name of the last column. overlap@10 has the new embedder as its reference, so only R@10 can show that
            staying is better.
    """
    last = {way: values[:, -1] for way, values in found.items()}
    everything = last[ALL]
    remarks: list[str] = []
    if metric.startswith("R@") and STAY in last:
        gain = difference_of(everything, last[STAY], group)
        remarks.append(f"re-encoding all instead of staying changes {metric} by {gain.shown(sign='+')} points")
        if gain.low <= 0 <= gain.high:
            remarks[-1] += ", which is not distinguished from 0"
        loses = gain.high < -tolerance * float(last[STAY].mean())
        other, base = (last[STAY], "staying") if loses else (everything, "re-encoding all")
        more = difference_of(last[BOTH], other, group)
        if helps := more.low > tolerance * float(other.mean()):
            remarks.append(
                f"searching both indexes instead of {base} changes {metric} by {more.shown(sign='+')} points"
            )
        if loses:
            return Verdict(*(("both", BOTH) if helps else ("stay", STAY)), tuple(remarks))
    for way in candidates:
        kept = ratio_of(last[way], everything, group)
        if kept.low >= 1 - tolerance:
            word = way[0] if way[0].startswith("map") else "re-encode"
            return Verdict(word, way, tuple(remarks))
        if kept.value >= 1 - tolerance and not any("--measure" in each for each in remarks):
            remarks.append(f"{name_of(way)} may keep enough ({kept.shown()} %): measure more queries with --measure")
    return Verdict("re-encode", ALL, tuple(remarks))


def name_of(way: Way) -> str:
    """Return the name in the table of a way to switch embedders."""
    if way == ALL:
        return "re-encode all"
    if way[1].isdigit():
        return f"re-encode {way[1]} % by {way[0]}"
    return f"{way[0]}, {way[1]}" if way[1] else way[0]
