"""How a hot path is measured: beside a plain way to do the same, in one process, in CPU seconds.

Both sides take turns (a b, b a, ...) on the same inputs, and a product of matrices (GEMM) is timed between them, so
that whatever else the machine does falls on all three. Of each pair there is a ratio; medians and the range over pairs
are kept. Memory is the peak of the process over what it held before. A go that is watched for it starts from a heap
that was handed back and must fetch each page anew; the goes that are timed follow it, for what is measured here runs
over and over in a training or an evaluation. Ours keep their pages from then on, as a run does (data/heap.py); plain
ways let go of them as glibc does for whoever asks for nothing.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from orchestrator.bench.work import Work
from orchestrator.data.heap import kept_heap, trim

GEMM = (2048, 768, 3072)  # rows, inner, columns of the product that says what this machine can do
LEAST = 0.15  # CPU seconds that a side is timed for, by as many goes as it takes (100 at most)
SMALL = 32.0  # MiB: smaller peaks say nothing


@dataclass(frozen=True)
class HotPath:
    """A piece of work, and the plain way to do the same."""

    title: str
    against: str  # what the plain way is
    ours: Work
    plain: Work
    pairs: int = 5
    is_gemm: bool = True  # multiply-adds decide: they are counted and compared with the machine's rate
    is_heavy: bool = False  # seconds a side: no warm-up but the go that is watched for memory
    has_memory: bool = True


@dataclass(frozen=True)
class Share:
    """A ratio that is better when larger, and how far it ranged."""

    value: float  # median over pairs
    noise: float  # largest minus smallest


@dataclass(frozen=True)
class Measured:
    """What came out. Shares: `times` (plain / ours, CPU seconds), `memory` (plain / ours, peak), `of_gemm`."""

    name: str
    title: str
    against: str
    seconds: float  # CPU, median
    plain_seconds: float
    pairs: int
    shares: dict[str, Share]
    peak: float | None = None  # MiB over what was held before
    plain_peak: float | None = None
    gmacs: float | None = None  # multiply-adds of ours, in 10^9


def cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def seconds_of(work: Work) -> float:
    """CPU seconds of one go."""
    started = cpu_seconds()
    work()
    return cpu_seconds() - started


def gemm_rate(seconds: float = 0.25) -> float:
    """Multiply-adds a CPU second (10^9) of one large float32 product, measured for about `seconds`."""
    rows, inner, columns = GEMM
    a, b = torch.ones(rows, inner), torch.ones(inner, columns)
    out = torch.empty(rows, columns)
    times = 0
    started = cpu_seconds()
    while (spent := cpu_seconds() - started) < seconds or not times:
        torch.mm(a, b, out=out)
        times += 1
    return times * rows * inner * columns / spent / 1e9


def available(file: Path = Path("/proc/meminfo")) -> float | None:
    """GiB that can be had without swapping; None where the system does not say."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((float(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable:")), None)


class Peak:
    """The largest resident set of this process since it was made; Linux only, None elsewhere."""

    def __init__(self) -> None:
        self.before: float | None = None
        if not sys.platform.startswith("linux"):
            return
        trim()  # what was freed is handed back, or it would hide in `before`
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak so far
        except OSError:
            return
        self.before = self._of("VmRSS")

    def mib(self) -> float | None:
        """Peak over what was held when this was made, in MiB."""
        return None if self.before is None else self._of("VmHWM") - self.before

    def _of(self, name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def measure(name: str, path: HotPath, pairs: int | None = None) -> Measured:
    """Run both sides in turn.

    Args:
        name: of the path.
        path: what is run.
        pairs: instead of the path's own number.
    """
    number, counter = pairs or path.pairs, Counting(path.ours)
    goes = 1
    if not path.is_heavy:
        warm = [seconds_of(work) for work in (counter if path.is_gemm else path.ours, path.plain)]
        goes = math.ceil(LEAST / max(min(warm), LEAST / 100))
    turns: list[tuple[Side, Side, float]] = []
    for turn in range(number):
        rate = gemm_rate() if path.is_gemm else 0.0
        works = (path.ours, path.plain)
        watched: tuple[Callable[[], object] | None, ...] = works if path.has_memory else (None, None)
        if turn == 0 and path.is_heavy and path.has_memory and path.is_gemm:
            watched = (counter, path.plain)
        found: dict[int, Side] = {}
        for which in (1, 0) if turn % 2 else (0, 1):
            with kept_heap(torch.device("cpu"), is_kept=which == 0):
                found[which] = Side.of(works[which], goes, watched[which])
        turns.append((found[0], found[1], (rate + gemm_rate()) / 2 if path.is_gemm else 0.0))
    shares = {"times": _share(plain.seconds / ours.seconds for ours, plain, _ in turns)}
    ours_peak = _smallest(ours.peak for ours, _, _ in turns)
    plain_peak = _smallest(plain.peak for _, plain, _ in turns)
    if path.has_memory and ours_peak and plain_peak and min(ours_peak, plain_peak) > SMALL:
        shares["memory"] = _share(plain.peak / ours.peak for ours, plain, _ in turns if ours.peak and plain.peak)
    if counter.gmacs:
        shares["of_gemm"] = _share(counter.gmacs / ours.seconds / rate for ours, _, rate in turns)
    return Measured(
        name,
        path.title,
        path.against,
        statistics.median(ours.seconds for ours, _, _ in turns),
        statistics.median(plain.seconds for _, plain, _ in turns),
        number,
        shares,
        ours_peak if path.has_memory else None,
        plain_peak if path.has_memory else None,
        counter.gmacs or None,
    )


class Counting:
    """Work that counts its multiply-adds (10^9) on the way: matrix products, convolutions and attention."""

    def __init__(self, work: Work) -> None:
        self.work, self.gmacs = work, 0.0

    def __call__(self) -> None:
        with _Counter() as counter:
            self.work()
        self.gmacs = counter.total / 2e9


class _Counter(TorchDispatchMode):
    """By torch's own formulas. Torch's own counter watches modules too, and so keeps what checkpointing lets go."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        out = func(*args, **named)
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **named, out_val=out)
        return out


@dataclass(frozen=True)
class Side:
    """What one side takes, as a mean over several goes where one is too short to be timed."""

    seconds: float  # CPU
    peak: float | None  # MiB

    @classmethod
    def of(cls, work: Work, goes: int, watched: Callable[[], object] | None) -> Side:
        """First, where memory matters, a go of `watched` alone for the peak; then `goes` of `work`, which are timed."""
        peak = None
        if watched is not None:
            memory = Peak()
            watched()
            peak = memory.mib()
        return cls(sum(seconds_of(work) for _ in range(goes)) / goes, peak)


def _smallest(peaks: Iterable[float | None]) -> float | None:
    return min((peak for peak in peaks if peak is not None), default=None)


def _share(ratios: Iterable[float]) -> Share:
    known = list(ratios)
    return Share(statistics.median(known), max(known) - min(known))
