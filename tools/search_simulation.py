"""Simulation of the makespan of a search and the share of busy slots: `python -m tools.search_simulation`.

The search is that of `ctvr sweep` (`on_ray.halving_searcher`, `on_ray.successive_halving`), with random results. Tasks
take a drawn time, and a process takes `--start` seconds until it can train its first segment.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig, TrialPlan, brackets_for
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving

PLAN = TrialPlan("simulated", "/nowhere", "", "", None, "/nowhere", {"method": "simulated"})


class Points:
    """Searcher whose points are numbers."""

    def suggest(self, trial_id: str) -> dict[str, str]:
        return {"point": trial_id}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Ignore results."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ignore results."""


@dataclass(frozen=True)
class Simulated:
    """Result of a simulation: seconds until the search ends, and seconds of training over all places."""

    seconds: float
    trained: float
    places: int

    @property
    def busy(self) -> float:
        return self.trained / (self.seconds * self.places)


def simulate(
    search: SearchConfig,
    places: int,
    num_tasks: int,
    rows: int = 1,
    sigma: float = 0.0,
    task: float = 1.0,
    start: float = 0.0,
    keeps: bool = True,
    seed: int = 0,
) -> Simulated:
    """Simulate a search on `places` slots.

    Args:
        search: settings of the search of every row.
        places: trials that run at once.
        num_tasks: number of tasks of the stream.
        rows: rows of a table.
        sigma: standard deviation of the lognormal time of a task.
        task: mean seconds of a task.
        start: seconds until a new process can train.
        keeps: whether processes are kept at a rung (`internals.keep_processes`).
        seed: of times and results.
    """
    chance = random.Random(seed)
    made = {str(row): SuccessiveHalving(Points(), search, num_tasks, dict) for row in range(rows)}
    searcher = HalvingSearcher(made, dict.fromkeys(made, PLAN))
    waiting: list[str] = []  # suggested segments without a process
    free = starting = number = 0
    events: list[tuple[float, int, str]] = []  # (time, number, name of the segment that ends; "" for a process)
    now = trained = 0.0
    while True:
        while len(waiting) + sum(bool(name) for _, _, name in events) < places:
            number += 1
            if not isinstance(searcher.suggest(str(number)), dict):
                break
            waiting.append(str(number))
        while waiting and free:
            free -= 1
            name = waiting.pop(0)
            segment = searcher.running[name]
            done = max(segment.trial.scores, default=0)
            seconds = sum(task * math.exp(chance.gauss(-(sigma**2) / 2, sigma)) for _ in range(done, segment.until))
            trained += seconds
            heapq.heappush(events, (now + seconds, int(name), name))
        in_use = sum(bool(name) for _, _, name in events)
        for _ in range(min(len(waiting) - starting, places - in_use - starting - free)):
            starting += 1
            heapq.heappush(events, (now + start, 0, ""))
        if not events:
            return Simulated(now, trained, places)
        now, _, name = heapq.heappop(events)
        free += 1
        if not name:
            starting -= 1
            continue
        segment = searcher.running[name]
        value = chance.random()
        for finished in range(1, segment.until + 1):
            searcher.on_trial_result(name, {"task": finished, GAIN: value})
        searcher.on_trial_complete(name)
        # Ray Tune decides before it requests the next segments; it keeps one process without a waiting segment
        most = max(searcher.segments_ahead() - in_use + 1, len(waiting)) if keeps else max(1, len(waiting))
        free = min(free, most)


def main(argv: Sequence[str] | None = None) -> int:
    """Print makespan and share of busy places with one bracket at a time, and with as many as fill the cluster."""
    parser = argparse.ArgumentParser(prog="python -m tools.search_simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--places", type=int, default=8, help="trials that run at once (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=10, help="tasks of the stream (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1, help="rows of a table (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="mean time of a task (default: %(default)s)")
    parser.add_argument("--sigma", type=float, default=0.0, help="lognormal spread of this time (default: %(default)s)")
    parser.add_argument("--start", type=float, default=0.0, help="seconds to start a process (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=1, help="(default: %(default)s)")
    given = parser.parse_args(argv)
    spread = given.sigma
    fill = brackets_for(SearchConfig(trials=given.trials), given.trials, given.tasks, given.places / given.rows)
    for at_once, keeps in sorted({(1, False), (1, True), (fill, True)}):
        search = SearchConfig(trials=given.trials, brackets_at_once=at_once)
        drawn = [
            simulate(search, given.places, given.tasks, given.rows, spread, given.seconds, given.start, keeps, seed)
            for seed in range(given.draws)
        ]
        seconds, busy = (sum(values) / given.draws for values in ((d.seconds for d in drawn), (d.busy for d in drawn)))
        kept = "processes kept" if keeps else "one process kept"
        sys.stdout.write(
            f"{given.trials} trials x {given.rows}, {given.places} places, {at_once:>3} brackets at once, {kept:<16}  "
            f"{seconds:7.1f} s, {busy:4.0%} busy\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
