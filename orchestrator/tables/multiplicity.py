"""q-values of several tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def q_values(p: Sequence[float]) -> list[float]:
    """Return the q-value of each test: the smallest false discovery rate at which its null hypothesis is rejected.

    The procedure is that of Benjamini and Hochberg (1995). A test whose p is NaN gets NaN and is not counted.
    """
    tested = np.asarray(p, float)
    order = np.argsort(tested)[: int(np.isfinite(tested).sum())]  # NaN is last
    q = tested.copy()
    q[order] = np.minimum.accumulate((tested[order] * len(order) / np.arange(1, len(order) + 1))[::-1])[::-1]
    return q.tolist()
