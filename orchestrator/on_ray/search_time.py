"""Simulation of a search on a cluster without Ray: its duration and the share of busy worker slots.

The simulated search runs the code of `ctvr sweep` (halving_searcher.py, successive_halving.py). The times of tasks are
random, and a new process needs time until it can train. `python -m tools.search_simulation` prints tables.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any

from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher
from ctvr.orchestrator.on_ray.journal import HalvingTrial
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig, TrialPlan
from ctvr.orchestrator.on_ray.successive_halving import SearcherProtocol, SuccessiveHalving

PLAN = TrialPlan("simulated", "/nowhere", "", "", None, "/nowhere", {"method": "simulated"})


class Points:
    """Searcher whose points contain only the number of the trial."""

    def suggest(self, trial_id: str) -> dict[str, str]:
        return {"point": trial_id}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Ignore results."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ignore results."""


@dataclass(frozen=True)
class Simulated:
    """Result of a simulation."""

    seconds: float  # time until the search ends
    trained: float  # sum of the training times (seconds) of all worker slots
    places: int  # number of worker slots
    trials: list[HalvingTrial]  # trials of the first row

    @property
    def busy(self) -> float:
        """Return the share of time in which worker slots train, from 0 to 1."""
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
    points: Callable[[], SearcherProtocol] = Points,
    score: Callable[[HalvingTrial, int], float] | None = None,
) -> Simulated:
    """Simulate a search on `places` worker slots.

    Args:
        search: settings of the search of every row.
        places: number of trials that run at once.
        num_tasks: number of tasks of the stream.
        rows: number of rows of the table.
        sigma: standard deviation of the logarithm of the time of a task, which is lognormal.
        task: mean time of a task (seconds).
        start: time until a new process can train (seconds).
        keeps: whether processes are kept at a rung (`internals.keep_processes`).
        seed: seed of the times and of the default scores.
        points: creates the searcher of a row.
        score: returns the objective of a trial after a task; if None, a random constant of each trial.
    """
    if score is None:
        value = cache(lambda number: random.Random(f"{seed} {number}").random())
        score = lambda trial, task: value(trial.number)  # noqa: E731
    chance = random.Random(seed)
    made = {str(row): SuccessiveHalving(points(), search, num_tasks, dict) for row in range(rows)}
    searcher = HalvingSearcher(made, dict.fromkeys(made, PLAN))
    waiting: list[str] = []  # suggested segments without a process
    free = starting = number = 0
    events: list[tuple[float, int, str]] = []  # (time, number, name of a segment that ends; "" for a started process)
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
            return Simulated(now, trained, places, next(iter(made.values())).trials)
        now, _, name = heapq.heappop(events)
        free += 1
        if not name:
            starting -= 1
            continue
        segment = searcher.running[name]
        for finished in range(1, segment.until + 1):
            searcher.on_trial_result(name, {"task": finished, GAIN: score(segment.trial, finished)})
        searcher.on_trial_complete(name)
        # Ray Tune decides how many processes to keep before it requests segments; by default it keeps one idle process
        most = max(searcher.segments_ahead() - in_use + 1, len(waiting)) if keeps else max(1, len(waiting))
        free = min(free, most)


SIGMA = 0.25  # standard deviation of the logarithm of a task's time, in plans and docs/search.md
MOST_PLACES = 32  # worker slots; a larger cluster and its search are scaled down to these


def task_times(search: SearchConfig, trials: int, num_tasks: int, places: int, rows: int = 1, draws: int = 5) -> float:
    """Return the simulated duration of a search as a multiple of the mean time of a task.

    A search on more than `MOST_PLACES` worker slots is simulated on `MOST_PLACES`, with trials, lag and brackets scaled
    down in proportion.

    Args:
        search: settings of the search of every row.
        trials: number of trials of a row.
        num_tasks, places, rows: see `simulate`.
        draws: number of simulations, whose mean is returned.
    """
    share = min(1.0, MOST_PLACES / places)
    least = int(bool(search.lag))
    scaled = replace(
        search,
        trials=max(1, round(trials * share)),
        lag=max(least, round(search.lag * share)),
        brackets_at_once=math.ceil(search.brackets_at_once * share),
    )
    drawn = (simulate(scaled, round(places * share), num_tasks, rows, SIGMA, seed=seed) for seed in range(draws))
    return mean(each.seconds for each in drawn)
