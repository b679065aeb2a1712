"""Order of trials by several objectives.

A point dominates another if it is not worse in any objective and better in at least one. The points that no other point
dominates form the Pareto front. If these are removed, the remaining points form the next front in the same way, and so
on (non-dominated sorting). Within a front, points in sparse regions come first (crowding distance). Source: Deb et al.,
"A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 6(2),
2002, section III. With one objective, trials are ordered by its value.

A point is a tuple of losses; smaller is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Losses = tuple[float, ...]


def losses_of(values: Sequence[float], modes: Sequence[str]) -> Losses:
    """Return the values of a trial as losses, all infinite if a value is NaN.

    Args:
        values: values of each objective.
        modes: "max" or "min" of each objective.
    """
    if any(math.isnan(value) for value in values):
        return (math.inf,) * len(values)
    return tuple(-value if mode == "max" else value for value, mode in zip(values, modes, strict=True))


def dominates(one: Losses, other: Losses) -> bool:
    """Return whether a point dominates another."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def fronts(points: Sequence[Losses]) -> list[int]:
    """Return for each point the index of its front; the Pareto front has index 0."""
    found: dict[int, int] = {}
    front = 0
    while len(found) < len(points):
        left = [index for index in range(len(points)) if index not in found]
        free = [index for index in left if not any(dominates(points[other], points[index]) for other in left)]
        found |= dict.fromkeys(free, front)
        front += 1
    return [found[index] for index in range(len(points))]


def best_first(points: Sequence[Losses]) -> list[int]:
    """Return the indices of points sorted by front, then by descending crowding distance, then by losses."""
    front = fronts(points)
    spread = [0.0] * len(points)
    for number in set(front):
        members = [index for index in range(len(points)) if front[index] == number]
        for objective in range(len(points[members[0]])):
            ordered = sorted(members, key=lambda index: points[index][objective])
            low, high = points[ordered[0]][objective], points[ordered[-1]][objective]
            if not 0 < high - low < math.inf:
                continue
            spread[ordered[0]] = spread[ordered[-1]] = math.inf
            for before, index, after in zip(ordered, ordered[1:], ordered[2:]):
                spread[index] += (points[after][objective] - points[before][objective]) / (high - low)
    return sorted(range(len(points)), key=lambda index: (front[index], -spread[index], points[index]))
