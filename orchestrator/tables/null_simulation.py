"""How often `significance.difference` calls two equal methods different: `make null-simulation`.

Both methods have the same expected R@1. A query is found first if a normal score exceeds a threshold; the score is made
of the video's own difficulty, of how the video suits the method, of the seed's luck and of the query's own noise, part
of which is new with every seed. Another draw is other videos and other seeds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from orchestrator.tables.significance import difference, holm
from orchestrator.tables.table import LEVEL


@dataclass(frozen=True)
class Situation:
    """What a table may look like; standard deviations but `seed_points` are on the scale of a query's score."""

    name: str
    videos: int = 300
    captions: int = 1
    seeds: int = 1
    seed_points: float = 0.0  # standard deviation of R@1 over seeds, in points
    video: float = 0.5  # of what a video has in common for all methods
    suits: float = 0.4  # of what a video has in common for one method
    fresh: float = 0.5  # of a query's noise that is new with every seed


SITUATIONS = (
    Situation("independent queries, one seed", videos=1000),
    Situation("20 captions a video, one seed", captions=20),
    Situation("20 captions a video, 3 seeds, sd 1", captions=20, seeds=3, seed_points=1.0),
    Situation("3 seeds, sd 0", videos=2990, seeds=3),
    Situation("3 seeds, sd 1", videos=2990, seeds=3, seed_points=1.0),
    Situation("3 seeds, sd 2", videos=2990, seeds=3, seed_points=2.0),
    Situation("5 seeds, sd 2", videos=2990, seeds=5, seed_points=2.0),
    Situation("3 seeds, sd 1, 160 queries", videos=160, seeds=3, seed_points=1.0),
)


def draw(situation: Situation, rng: np.random.Generator, methods: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (methods, S, Q), 1 or 2, and the video (Q,) of each query."""
    s = situation
    queries = s.videos * s.captions
    videos = np.repeat(np.arange(s.videos), s.captions)
    score = rng.normal(0, s.video, s.videos)[videos] + rng.normal(0, s.suits, (methods, 1, s.videos))[..., videos]
    score = score + rng.normal(0, 1, queries) + rng.normal(0, s.fresh, (methods, s.seeds, queries))
    spread = np.sqrt(s.video**2 + s.suits**2 + 1 + s.fresh**2)
    per_point = 0.01 * spread * np.sqrt(2 * np.pi) * np.exp(0.5 * 0.6745**2)  # at R@1 = 25 %: threshold of 0.6745
    score = score + rng.normal(0, s.seed_points * per_point, (methods, s.seeds, 1))
    return np.where(score > 0.6745 * spread, 1, 2), videos


def false_positives(situation: Situation, draws: int, seed: int = 0) -> float:
    """Share of draws in which two equal methods differ at 5 %."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        (a, b), videos = draw(situation, rng)
        hits += difference(a, b, videos).p < LEVEL
    return hits / draws


def false_tables(situation: Situation, rows: int, draws: int, seed: int = 0) -> float:
    """Share of tables of equal rows in which a star stands anywhere beside the best one."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        ranks, videos = draw(situation, rng, rows)
        best = int(np.argmax((ranks <= 1).mean(axis=(1, 2))))
        pairs = [(i, j) for i in range(rows) for j in range(i + 1, rows)]
        corrected = holm([difference(ranks[i], ranks[j], videos).p for i, j in pairs])
        hits += any(p < LEVEL for p, pair in zip(corrected, pairs) if best in pair)
    return hits / draws


def main(argv: list[str] | None = None) -> int:
    """Print one line for each situation."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tables.null_simulation", description=__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="draws of each situation (%(default)s)")
    draws = parser.parse_args(argv).draws
    for situation in SITUATIONS:
        sys.stdout.write(f"{situation.name:<40} {100 * false_positives(situation, draws):5.1f} %\n")
        sys.stdout.flush()
    small = Situation("", videos=500, seeds=3, seed_points=1.0)
    share = false_tables(small, 11, draws // 10)
    sys.stdout.write(f"{'tables of 11 equal rows with a star':<40} {100 * share:5.1f} % of {draws // 10}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
