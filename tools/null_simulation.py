"""Simulation of the false-positive rate of tables, claims, gaps and confirmations: `make null-simulation`.

All methods have the same expected R@1. A query is a hit at rank 1 if a normal score exceeds a threshold. The score is
the sum of the video's difficulty, the fit of video and method, the effect of a seed, and the query's noise, part of
which is new in every run. Each draw has new videos and seeds. The simulation checks the bounds of `measures`, and
that the width of intervals does not jump (`jumps`). `null_exceptions.tsv` lists situations outside a bound with their
figure and a reason; their figure must not change by more than `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import special

from ctvr.orchestrator.tables.intervals import of_seeds
from ctvr.orchestrator.tables.multiple_comparisons import Family, combined
from tools import null_designs
from tools.null_designs import FRESH, SPREAD, SUITS, VIDEO, Design

LEAST, MOST = 0.035, 0.065  # error over all draws
ABOVE_ORDINARY = 0.01  # permitted error of a third above that of the ordinary Satterthwaite rule
OF_THIRD = 0.03, 0.075  # error of a third of the draws where at least `POOLED` degrees of freedom are pooled
POOLED = 20
LEAST_POWER = 0.78
STEP = 1.05  # largest ratio of two of 100 widths
TOLERANCE = 0.01  # permitted change of the figure of an exception
EXCEPTIONS = Path(__file__).with_name("null_exceptions.tsv")
TRIALS = 8  # trials of a search before its confirmation
QUERIES = {1.0: 2990, 2.0: 2990, 5.0: 400, 25.0: 480}  # captions, so that at least 20 are found
CHUNK = 500_000  # scores drawn at once, so that they stay in the cache


@dataclass(frozen=True)
class Situation:
    """Shape of a simulated table or page; `seed_points`: standard deviation of R@1 over seeds, in points, by row."""

    name: str = ""
    rows: int = 2
    seeds: int = 3
    r1: float = 5.0
    seed_points: tuple[float, ...] = (1.0,)
    queries: int = 400
    kind: Literal["table", "claim", "gap", "confirmation"] = "table"
    better: float = 0.0  # points of R@1 by which row 1 of a claim is better; the share of rejections is then the power
    tied: float = 0.0  # share of captions whose video ties with another one, so that a hit counts half


def hits(s: Situation, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Simulate hits at rank 1, (N, K, S, Q) for N draws, K rows, S seeds and Q queries: 0, 1, or 1/2 for a tie."""
    single = np.float32
    threshold = -float(special.ndtri(s.r1 / 100))
    per_point = 0.01 * SPREAD * np.sqrt(2 * np.pi) * np.exp(threshold**2 / 2)
    points = np.resize(s.seed_points, s.rows)
    size = (draws, s.rows, s.seeds, s.queries)
    score = FRESH * rng.standard_normal(size, single)
    score += SUITS * rng.standard_normal((draws, s.rows, 1, s.queries), single)
    score += single(np.hypot(1, VIDEO)) * rng.standard_normal((draws, 1, 1, s.queries), single)
    luck = points[:, None] * rng.standard_normal((draws, s.rows, s.seeds))
    luck[:, 1:2] += s.better
    score += (per_point * luck).astype(single)[..., None]
    found = (score > threshold * SPREAD).astype(single)
    found[..., : round(s.tied * s.queries)] /= 2
    return found


def summary(found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each query's mean R@1 (N, K, Q), the variance of R@1 over seeds (N, K), and its part due to queries."""
    _, _, seeds, queries = found.shape
    of_query, of_seed = 100 * found.mean(axis=2), found.sum(axis=3).astype(float) * 100 / queries
    rest = 1e4 * np.einsum("nksq,nksq->nk", found, found).astype(float)  # sums of quarters, exact in single precision
    rest -= seeds * np.einsum("nkq,nkq->nk", of_query, of_query, dtype=float)
    rest -= queries * ((of_seed - of_seed.mean(axis=2, keepdims=True)) ** 2).sum(axis=2)
    return of_query, of_seed.var(axis=2, ddof=1), np.maximum(0, rest) / ((seeds - 1) * (queries - 1) * queries)


def draw(s: Situation, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Simulate N tables: return the hits (N, K, S, Q) of their rows, of which the first is compared with the others.

    For a gap, hits are differences between two galleries. A confirmation has the recommended row and two of eight
    trials: the best in one further run of each trial on the same videos.
    """
    if s.kind == "gap":
        points = tuple(each / np.sqrt(2) for each in s.seed_points)
        found = hits(replace(s, rows=2 * s.rows, seed_points=points), draws, rng)
        return found[:, ::2] - found[:, 1::2]
    if s.kind == "confirmation":
        found = hits(replace(s, rows=TRIALS + 1, seeds=s.seeds + 1), draws, rng)
        order = 1 + np.argsort(-found[:, 1:, 0].mean(axis=2), axis=1, kind="stable")[:, : s.rows - 1]
        order = np.concatenate([np.zeros((draws, 1), int), order], axis=1)
        return np.take_along_axis(found[:, :, 1:], order[:, :, None, None], 1)
    found = hits(s, draws, rng)
    if s.kind == "claim":
        return found
    order = np.argsort(-found.mean(axis=(2, 3)), axis=1, kind="stable")  # the best row comes first
    return np.take_along_axis(found, order[:, :, None, None], 1)


@dataclass(frozen=True)
class Tested:
    """Results of tests at 5 %: for each of N draws, whether our rule or the ordinary one finds a difference."""

    ours: np.ndarray
    ordinary: (
        np.ndarray
    )  # df = V^2 / (V_videos^2 / df_videos + U^2 / df_seeds), as Satterthwaite's formula is often written
    seen: np.ndarray  # mean variance over the seeds of all rows


def judged(s: Situation, found: np.ndarray) -> Tested:
    """Test all N draws `found` (N, K, S, Q) together, as `intervals.differences`, `compare` and `paired_changes` do."""
    of_query, seen, both = summary(found)
    is_gap = s.kind == "gap"
    spread = of_seeds([(s.seeds, seen[:, row], both[:, row]) for row in range(s.rows)], None if is_gap else 0)
    assert spread is not None  # every row has several seeds
    rows = range(1, s.rows) if s.kind in {"table", "confirmation"} else [0 if is_gap else 1]
    d = np.stack([of_query[:, row] - (0 if is_gap else of_query[:, 0]) for row in rows])  # (R, N, Q)
    value, of_videos = d.mean(axis=2, dtype=float), d.var(axis=2, ddof=1, dtype=float) / s.queries
    replicates = [np.array(each) for each in zip(*(spread.of(row) for row in rows))]
    family = Family(s.rows if s.kind in {"table", "confirmation"} else 2, s.kind != "confirmation")
    v, df = combined(of_videos, s.queries - 1, *replicates)
    used = np.maximum(0, replicates[0] - replicates[1])
    plain = v**2 / np.maximum(of_videos**2 / (s.queries - 1) + used**2 / replicates[2], 1e-300)
    counted = np.arange(len(value))[:, None] == value.argmax(axis=0) if s.kind == "confirmation" else True
    ours, ordinary = (
        ((np.abs(value) > quantiles(family, each) * np.sqrt(v)) & counted).any(axis=0) for each in (df, plain)
    )
    return Tested(ours, ordinary, seen.mean(axis=1))


@cache
def _grid(family: Family) -> tuple[np.ndarray, np.ndarray]:
    inverse = np.concatenate([np.linspace(1e-4, 0.02, 20), np.linspace(0.03, 1, 98)])
    return inverse, np.array([family.quantile(1 / each) for each in inverse])


def quantiles(family: Family, df: np.ndarray) -> np.ndarray:
    """Return `Family.quantile` for each df, interpolated in 1 / df with an error below 0.1 %."""
    return np.interp(1 / np.maximum(df, 1), *_grid(family))


def run(s: Situation, draws: int, seed: int = 0) -> Tested:
    """Simulate and test `draws` draws of a situation, in chunks that fit into memory."""
    rng, made, step = np.random.default_rng(seed), [], max(1, CHUNK // (s.rows * s.seeds * s.queries))
    for first in range(0, draws, step):
        made.append(judged(s, draw(s, min(step, draws - first), rng)))
    return Tested(*(np.concatenate([getattr(each, name) for each in made]) for name in Tested.__dataclass_fields__))


@dataclass(frozen=True)
class Measure:
    """A measured share of a situation, such as the false-positive rate, and its bounds."""

    name: str
    figure: float
    least: float
    most: float

    def is_within(self, known: dict[str, float]) -> bool:
        """Return whether the figure is within its bounds, or within `TOLERANCE` of its listed exception in `known`."""
        listed = known.get(self.name)
        return self.least <= self.figure <= self.most or (
            listed is not None and abs(self.figure - listed) <= TOLERANCE + 1e-9
        )


def measures(s: Situation | Design, draws: int) -> list[Measure]:
    """Simulate a situation, and return its figures with their bounds."""
    if isinstance(s, Design):
        return [Measure("error", float(null_designs.run(s, draws).mean()), LEAST, MOST)]
    tested = run(s, draws)
    if s.better:
        return [Measure("power", float(tested.ours.mean()), LEAST_POWER, 1.0)]
    thirds, ordinary = by_third(tested, tested.ours), by_third(tested, tested.ordinary)
    found = [
        Measure("error", float(tested.ours.mean()), LEAST, MOST),
        Measure("third above ordinary", float((thirds - ordinary).max()), -1.0, ABOVE_ORDINARY),
    ]
    if s.rows * (s.seeds - 1) >= POOLED:
        found += [Measure(f"third {place}", float(each), *OF_THIRD) for place, each in enumerate(thirds, 1)]
    return found


def jumps() -> list[str]:
    """Return designs whose interval width does not grow smoothly with the variance over seeds.

    Between neighbors of 100 variances, the width must not fall, and not rise by a factor above `STEP`.
    """
    found = []
    designs = ((2, 2.0), (2, 4.0), (2, 26.0), (6, 12.0), (13, 16.0), (13, 26.0))  # rows and degrees over seeds
    for (rows, few), both in product(designs, (0.0, 0.1, 0.5, 1.0)):
        variance, df = combined(1.0, 399, np.linspace(0, 3, 100), both, few)
        width = quantiles(Family(rows), df) * np.sqrt(variance)
        ratios = width[1:] / width[:-1]
        if ratios.min() < 1 - 1e-6 or ratios.max() > STEP:
            found.append(f"{rows} rows, {few:g} degrees, interaction {both:g}: width jumps or falls")
    return found


def exceptions() -> dict[str, dict[str, float]]:
    """Read the situations that are known to be outside a bound: situation -> name of the figure -> share."""
    found: dict[str, dict[str, float]] = {}
    for line in EXCEPTIONS.read_text(encoding="utf-8").splitlines()[1:]:
        name, measure, percent, _ = line.split("\t")
        found.setdefault(name, {})[measure] = float(percent) / 100
    return found


def by_third(tested: Tested, of: np.ndarray) -> np.ndarray:
    """Sort draws by their estimated variance over seeds; return the share called different in each third of them."""
    return np.array([of[each].mean() for each in np.array_split(np.argsort(tested.seen), 3)])


def situations() -> Iterator[Situation | Design]:
    """Yield the situations and designs that the simulation checks."""
    yield from null_designs.DESIGNS
    designs: list[tuple[str, str, int]] = [
        ("table", "2 rows", 2),
        ("table", "6 rows", 6),
        ("table", "13 rows", 13),
        ("claim", "claim alone", 2),
        ("claim", "claim, page of 13 rows", 13),
        ("gap", "gap alone", 1),
        ("gap", "gap, page of 13 rows", 13),
        ("confirmation", "confirmation, 2 best of 8 trials", 3),
    ]
    for (kind, name, rows), r1, sd, seeds in product(designs, (1.0, 2.0, 5.0, 25.0), (0.3, 1.0, 2.0), (3, 5)):
        if sd > r1 or name == "claim alone":  # R@1 would often be negative; a claim alone is a table of two rows
            continue
        queries = QUERIES[r1]
        text = f"{name}, R@1 {r1:g} %, {queries} captions, sd {sd:g}, {seeds} seeds"
        yield Situation(text, rows, seeds, r1, (sd,), queries, kind)  # type: ignore[arg-type]
    for rows in (2, 6):
        yield Situation(f"{rows} rows, half of the captions tied", rows, tied=0.5)
    for rows in (6, 13):
        yield Situation(f"power of a claim, page of {rows} rows", rows, seed_points=(0.8,), kind="claim", better=3)
    yield Situation("power of a claim alone", 2, seed_points=(0.8,), kind="claim", better=3)


def report(draws: int, write: Callable[[str], object], listed: Sequence[Situation | Design] = ()) -> int:
    """Write a line for each situation, then the number of situations outside the bounds; return this number."""
    broken, known = jumps(), exceptions()
    listed = listed or list(situations())
    write("".join(f"{each}\n" for each in broken))
    outside, excepted = len(broken), 0
    for s in listed:
        found = measures(s, draws)
        failed = [each for each in found if not each.is_within(known.get(s.name, {}))]
        beyond = [each for each in found if not each.least <= each.figure <= each.most]
        outside += bool(failed)
        excepted += bool(beyond and not failed)
        note = "OUTSIDE: " + ", ".join(each.name for each in failed) if failed else "exception" if beyond else ""
        figures = ", ".join(f"{each.name} {100 * each.figure:.1f}" for each in found)
        write(f"{s.name:<68} {figures} % {note}".rstrip() + "\n")
    write(f"{len(listed)} situations, {excepted} exceptions, {outside} outside the bounds\n")
    return outside


def main(argv: list[str] | None = None) -> int:
    """Print the report; exit status 1 if a situation is outside the bounds."""
    parser = argparse.ArgumentParser(prog="python -m tools.null_simulation", description=__doc__)
    parser.add_argument("--draws", type=int, default=3000, help="draws of each situation (default: %(default)s)")
    draws = parser.parse_args(argv).draws

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return 1 if report(draws, write) else 0


if __name__ == "__main__":
    sys.exit(main())
