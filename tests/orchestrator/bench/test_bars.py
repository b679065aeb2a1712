"""A row says which bar it has and whether it is met."""

from __future__ import annotations

import math

import pytest

from orchestrator.bench.bars import BARS, judged
from orchestrator.bench.hot import Measured, Share
from orchestrator.bench.paths import PATHS, SHOWN


def row(name: str, times: float = 1.0, seconds: float = 1.0, peak: float | None = 50.0) -> Measured:
    return Measured(name, "a", "b", seconds, 2.0, 3, {"times": Share(times, 0.0)}, peak, 100.0)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (row("step", times=1.3, peak=85.0), ">= 1.3x, peak <= 0.85x: met"),
        (row("step", times=1.29, peak=85.0), ">= 1.3x, peak <= 0.85x: missed"),
        (row("step", times=1.3, peak=86.0), ">= 1.3x, peak <= 0.85x: missed"),
        (row("step", times=1.3, peak=None), ">= 1.3x, peak <= 0.85x: unknown"),
        (row("step", times=math.nan, peak=None), ">= 1.3x, peak <= 0.85x: missed"),
        (row("start", seconds=1.6), "<= 1.5 s: missed"),
        (row("ranking-10000", seconds=2.6, peak=100.0), "<= 2.6 s, peak <= 100 MiB: met"),
        (row("ranking-10000", seconds=2.6, peak=101.0), "<= 2.6 s, peak <= 100 MiB: missed"),
        (row("step-toy"), "-"),
    ],
)
def test_a_bar_is_met_only_where_all_that_it_asks_is_measured_and_enough(measured: Measured, said: str) -> None:
    assert judged(measured) == said


def test_every_bar_is_of_a_path() -> None:
    assert set(BARS) <= {*PATHS, *SHOWN}
