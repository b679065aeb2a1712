"""Retrieval and forgetting metrics: pure functions of positions (ranking.py) and of R@1 matrices.

R@k is the mean of P(rank <= k) under a random order of equal scores, so a constant score has R@k = 100 k / V. A tie
counts half in the median and mean rank.

Protocol: CTVR (arXiv:2503.10111, section 3) and CVLM (BMU-MoCo, section 4). All recalls and forgetting values are
in percent (points); T tasks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

Matrix = Sequence[Sequence[float]]  # lower-triangular: row t holds R@1 of tasks 0..t after task t


class Positions(Protocol):
    """Positions of N queries' matches, as in ranking.py; its arrays (N,) are of torch or NumPy."""

    def __len__(self) -> int: ...

    @property
    def rank(self) -> Any: ...

    def chance(self, k: int) -> Any: ...


def recall(found: Positions, k: int) -> float:
    """Return R@k in percent: mean probability that a query's match is among the first k; NaN without queries."""
    return 100.0 * math.fsum(found.chance(k).tolist()) / len(found) if len(found) else math.nan


def summary(found: Positions) -> dict[str, float]:
    """Return r1, r5, r10 in percent, rsum (their sum), and medr and meanr (median and mean rank)."""
    if not len(found):
        return dict.fromkeys(("r1", "r5", "r10", "rsum", "medr", "meanr"), math.nan)
    recalls, ranks = {f"r{k}": recall(found, k) for k in (1, 5, 10)}, found.rank.tolist()
    return {
        **recalls,
        "rsum": sum(recalls.values()),
        "medr": float(statistics.median(ranks)),  # the mean of the two middle ranks where Q is even
        "meanr": math.fsum(ranks) / len(ranks),
    }


def backward_forgetting(matrix: Matrix) -> float:
    """Return BWF_t = 1/(t-1) sum_{i<t} (R_ii - R_ti) after the last row's task; 0 after the first task.

    CTVR, section 3.3. In points; lower is better, and a negative value is a gain.
    """
    last = matrix[-1]
    earlier = len(matrix) - 1
    return sum(matrix[i][i] - last[i] for i in range(earlier)) / earlier if earlier else 0.0


def forgetting_rate(matrix: Matrix) -> float:
    """Return the overall FR, the sum over t of A_tt - A_nt (BMU-MoCo, section 4.1, with a typo corrected)."""
    last = matrix[-1]
    return float(sum(matrix[i][i] - last[i] for i in range(len(matrix))))


def history(own: Matrix, union: Matrix, protocol: str) -> dict[str, float]:
    """Return the metrics that need earlier tasks: forgetting and, for CVLM, FR and HM. An empty matrix gives none."""
    found = {"stream/t2v/bwf": backward_forgetting(own)} if own else {}
    found |= {"stream/t2v/bwf_union": backward_forgetting(union)} if union else {}
    if protocol == "cvlm" and own:
        found["stream/t2v/r1_mean"] = sum(own[-1]) / len(own)
        found["stream/t2v/fr"] = forgetting_rate(own)
        found["stream/t2v/hm"] = harmonic_mean(own)
    return found


def harmonic_mean(matrix: Matrix) -> float:
    """Return HM, the harmonic mean of the mean A_tt and the mean A_nt of n tasks (BMU-MoCo, section 4.1)."""
    current = sum(matrix[i][i] for i in range(len(matrix))) / len(matrix)
    final = sum(matrix[-1]) / len(matrix)
    return 2 * current * final / (current + final) if current + final else 0.0
