"""Student's t distribution: tail and quantile, for tests with few seeds. Standard library alone."""

from __future__ import annotations

import math

ENOUGH = 1e-14  # relative change at which the continued fraction has converged


def two_sided(t: float, df: float) -> float:
    """P(|T| >= |t|) of Student's t with `df` degrees of freedom, which need not be whole."""
    return _incomplete_beta(df / 2, 0.5, df / (df + t * t)) if math.isfinite(t) else 0.0


def quantile(level: float, df: float) -> float:
    """The t >= 0 with P(|T| >= t) = `level`, by bisection."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > level else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz & Stegun, 26.5.8)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for factor in (even, odd):
            c, d = 1 + factor / c, 1 / (1 + factor * d)
            total *= c * d
        if abs(c * d - 1) < ENOUGH:
            break
    return front * total
