"""What the project asks of its hot paths, beside which `make bench` says met or missed.

A bar is of the papers' size alone: toys have none. Missing one fails nothing; falling below a recorded share does.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.bench.hot import Measured


@dataclass(frozen=True)
class Bar:
    """What is demanded; None asks nothing."""

    times: float | None = None  # at least so many times as fast as the plain way, CPU seconds
    memory: float | None = None  # at most so much of the plain way's peak
    seconds: float | None = None  # at most, CPU
    peak: float | None = None  # at most, MiB over what was held before

    def __str__(self) -> str:
        parts = [
            "" if self.times is None else f">= {self.times:g}x",
            "" if self.memory is None else f"peak <= {self.memory:g}x",
            "" if self.seconds is None else f"<= {self.seconds:g} s",
            "" if self.peak is None else f"peak <= {self.peak:g} MiB",
        ]
        return ", ".join(part for part in parts if part)


BARS = {
    "step": Bar(times=1.3, memory=0.85),
    "checkpointed": Bar(memory=0.55),
    "structalign-32": Bar(times=2.0),
    "texts-task10": Bar(times=2.0),
    "tempme": Bar(times=1.48),
    "tempme-16": Bar(times=1.68),
    # set with a clip of which frames by decord and a second pass took 1.10 s; a clip made here may be easier than that
    # one, and then `times` (1.10 / 0.45 = 2.44) says more than seconds
    "cold": Bar(seconds=0.45),
    "ranking-10000": Bar(seconds=2.6, peak=100.0),
    "start": Bar(seconds=1.5),
}


def judged(row: Measured) -> str:
    """The bar of a path and whether it is met; `-` where nothing is asked, `unknown` where a figure is missing."""
    bar = BARS.get(row.name)
    if bar is None:
        return "-"
    times = row.shares.get("times")
    part = row.peak / row.plain_peak if row.peak is not None and row.plain_peak else None
    asked = [
        (bar.times, None if times is None else times.value, True),
        (bar.memory, part, False),
        (bar.seconds, row.seconds, False),
        (bar.peak, row.peak, False),
    ]
    verdicts = [
        None if found is None else found >= limit if is_least else found <= limit
        for limit, found, is_least in asked
        if limit is not None
    ]
    said = "missed" if False in verdicts else "unknown" if None in verdicts else "met"
    return f"{bar}: {said}"
