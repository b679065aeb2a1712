"""Timing of a hot path and of a plain implementation of it in one process, in CPU seconds.

Both run alternately (a b, b a, ...) on the same inputs after one warm-up each, so that other load of the machine
affects both. The result is the median of the ratios of the pairs, with the smallest and the largest ratio.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.work import Work

LEAST = 0.15  # minimum CPU seconds of a timing, reached by repetition (100 times at most)


@dataclass(frozen=True)
class HotPath:
    """A benchmark: our implementation of some work, and a plain implementation of the same work."""

    title: str
    against: str  # description of the plain implementation
    ours: Work
    plain: Work
    pairs: int = 5
    is_heavy: bool = False  # whether it takes seconds and is not repeated within a timing


@dataclass(frozen=True)
class Measured:
    """Medians over pairs of runs. `ratio` is plain / ours, > 1 if ours is faster; `low` and `high` are its range."""

    name: str
    path: HotPath
    seconds: float  # CPU
    plain_seconds: float
    ratio: float
    low: float
    high: float


def seconds_of(work: Work, goes: int = 1) -> float:
    """Return the mean CPU seconds of `goes` calls, including child processes that have ended."""
    started = _cpu_seconds()
    for _ in range(goes):
        work()
    return (_cpu_seconds() - started) / goes


def _cpu_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def measure(name: str, path: HotPath) -> Measured:
    """Time a hot path and its plain implementation alternately."""
    goes, works = 1, (path.ours, path.plain)
    warm = [seconds_of(work) for work in works]
    if not path.is_heavy:
        goes = math.ceil(LEAST / max(min(warm), LEAST / 100))
    turns: list[tuple[float, float]] = []
    for turn in range(path.pairs):
        found = {which: seconds_of(works[which], goes) for which in ((1, 0) if turn % 2 else (0, 1))}
        turns.append((found[0], found[1]))
    ratios = [plain / ours for ours, plain in turns]
    ours, plain = (statistics.median(side) for side in zip(*turns))
    return Measured(name, path, ours, plain, statistics.median(ratios), min(ratios), max(ratios))


def to_markdown(rows: Sequence[Measured]) -> str:
    """Format the rows as a Markdown table."""
    lines = ["| path | ours | plain way | CPU s ours / plain | times as fast | pairs |", "|---|---|---|--:|--:|--:|"]
    lines += [
        f"| {row.name} | {row.path.title} | {row.path.against} | {row.seconds:.3g} / {row.plain_seconds:.3g} "
        f"| {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}) | {row.path.pairs} |"
        for row in rows
    ]
    return "\n".join(lines)
