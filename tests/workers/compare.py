"""Comparison of two runs that should have learned the same: their differences as sentences."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

CLOSE = 5e-3  # relative to the change by training; rounding gives 1e-6 to 2e-3, faults give 1e-2 and more
LOSS = 2e-4


def apart(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the differences of `found` (several workers) from `expected` (one) beyond rounding, as sentences."""
    return [*_numbers(found, expected), *_tensors(found, expected)]


def distances(found: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[float, float]:
    """Return the largest distance of a logged number (relative to 1 or more) and of a tensor (to its change)."""
    logs = zip(found["training"], expected["training"], strict=True)
    loss = max(abs(mine[name] - other[name]) / max(1.0, abs(other[name])) for mine, other in logs for name in other)
    state, start = expected["state"], expected["start"]
    return loss, max(_share(found["state"][name], state[name], start.get(name)) for name in state)


def _numbers(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    if "diverged" in found:
        yield f"diverged: {found['diverged']}"
        return
    for epoch, (mine, other) in enumerate(zip(found["training"], expected["training"], strict=True)):
        for name in {*mine, *other}:
            a, b = mine.get(name, math.nan), other.get(name, math.nan)
            if not abs(a - b) <= LOSS * max(1.0, abs(b)):
                yield f"{name} of epoch {epoch + 1}: {a:.5g} for {b:.5g}"
    if found["own"] != expected["own"]:
        yield f"R@1: {found['own']} for {expected['own']}"


def _tensors(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    mine, other, start = found.get("state", {}), expected["state"], expected["start"]
    if mine.keys() != other.keys():
        yield f"other tensors: {sorted(mine.keys() ^ other.keys())[:3]}"
        return
    worst = {name: _share(mine[name], other[name], start.get(name)) for name in other}
    name = max(worst, key=lambda each: worst[each])
    if worst[name] > CLOSE:
        count = sum(share > CLOSE for share in worst.values())
        yield f"{count} of {len(worst)} tensors, {name} by {worst[name]:.2g} of its change"
    for index, pair in enumerate(zip(found["galleries"], expected["galleries"], strict=True)):
        if (share := _share(*pair, None)) > CLOSE:
            yield f"gallery {index + 1} by {share:.2g}"


def _share(mine: Tensor, other: Tensor, start: Tensor | None) -> float:
    """Return the largest difference of two tensors relative to the change of the second in training."""
    if mine.shape != other.shape:
        return math.inf
    if not other.is_floating_point():
        return 0.0 if torch.equal(mine, other) else math.inf
    if not other.numel():
        return 0.0
    change = other if start is None or start.shape != other.shape else other - start
    far, scale = float((mine - other).abs().max()), float(change.abs().max())
    return far / max(scale, 1e-4)
