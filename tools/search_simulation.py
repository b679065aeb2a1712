"""Simulations of searches (`on_ray.search_time`), printed as tables: `python -m tools.search_simulation`.

Without an option the table has the makespan and the share of busy slots of one search. `--shares` compares brackets
that fill a cluster with windows, for 8 to 512 worker slots (places). `--regret` compares the regret of their winners
and of the winner of a random search that takes at least as long. It uses synthetic surfaces: functions from settings to
noisy results. `--timing` compares Ray Tune's ASHA with the default scheduler, and counts the searches whose winner
changes if only the durations of tasks change.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher
from ctvr.orchestrator.on_ray.journal import HalvingTrial
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.schedulers import TimingScheduler
from ctvr.orchestrator.on_ray.search import choices, make_searcher, rates_around
from ctvr.orchestrator.on_ray.search_budget import count_random_trials, fill_brackets, fit_search, inform_half
from ctvr.orchestrator.on_ray.search_space import SearchSpace
from ctvr.orchestrator.on_ray.search_time import PLAN, SIGMA, Simulated, simulate
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving

SIZES = ((32, 8), (64, 8), (128, 8), (64, 16), (128, 16), (64, 32), (128, 32), (256, 32), (256, 64), (512, 128))
LARGE = ((1024, 256), (1024, 512), (2048, 512))  # 2 draws
SURFACES = {"bowl": (1, 1, 1), "narrow": (3, 3, 0.1, 0.1, 0.1, 0.1), "late": (1, 1, 1), "choices": (1, 1)}
NOISE = 0.05  # SD of the noise of a result; results of random points have an SD of about 0.25 at the last task
Point = Mapping[str, Any]


class Surface:
    """Synthetic results of trials as a function of the task and of settings x0, x1, ... on a log scale; the best is 0.

    "bowl" falls with the squared distance from a random point. "narrow" falls almost only in two of its six settings.
    In "late", the first tasks have other best settings. "choices" has in addition two settings with four unordered
    values.

    Args:
        name: a key of SURFACES, which has the weights of the settings.
        seed: seed of the best point and of the noise.
        num_tasks: number of tasks.
    """

    def __init__(self, name: str, seed: int, num_tasks: int) -> None:
        chance = random.Random(f"{name} {seed}")
        self.weights, self.seed, self.num_tasks = SURFACES[name], seed, num_tasks
        self.best = [chance.random() for _ in self.weights]
        self.early = [chance.random() for _ in self.weights] if name == "late" else self.best
        self.space: dict[str, Any] = {f"x{place}": rates_around(1.0) for place in range(len(self.weights))}
        self.gains = {f"c{place}": [chance.gauss(0, 0.3) for _ in range(4)] for place in range(2 * (name == "choices"))}
        self.space |= {name: choices(range(4)) for name in self.gains}

    def regret(self, point: Point, best: Sequence[float] | None = None) -> float:
        """Return how much worse a point is than the best point, or than `best` if given; without noise."""
        return self._distance(point, best or self.best) + sum(
            max(gains) - gains[point[name]] for name, gains in self.gains.items()
        )

    def score(self, trial: HalvingTrial, task: int) -> float:
        """Return the noisy result of a trial after a task (1-based); differences between trials grow with the tasks."""
        part = task / self.num_tasks
        early = self.regret(trial.point, self.early)
        regret = part * self.regret(trial.point) + (1 - part) * early
        return -regret * math.sqrt(part) + random.Random(f"{self.seed} {trial.number} {task}").gauss(0, NOISE)

    def _distance(self, point: Point, best: Sequence[float]) -> float:
        found = [(1 + math.log10(point[f"x{place}"])) / 2 for place in range(len(best))]  # in [0, 1]
        return sum(w * (x - at) ** 2 for w, x, at in zip(self.weights, found, best))


def simulate_timing(
    search: SearchConfig, places: int, num_tasks: int, seed: int, points: Any, score: Any
) -> tuple[float, list[HalvingTrial]]:
    """Simulate a search with a scheduler whose decisions depend on timing (ASHA); arguments as in `simulate`.

    Return the duration of the search, in mean durations of a task, and its trials. Processes start without delay.
    """
    chance, made = random.Random(seed), SuccessiveHalving(points(), search, num_tasks, dict)
    searcher, scheduler = HalvingSearcher({"": made}, {"": PLAN}), TimingScheduler(search, "task", num_tasks)
    events: list[tuple[float, int, int]] = []  # (time, number of the trial, task that ends)
    trials: dict[int, Any] = {}
    now, number = 0.0, 0
    while True:
        while len(events) < places and isinstance(searcher.suggest(str(number)), dict):
            trials[number] = SimpleNamespace(trial_id=str(number))
            scheduler.on_trial_add(None, trials[number])
            heapq.heappush(events, (now + _task_time(chance), number, 1))
            number += 1
        if not events:
            return now, made.trials
        now, each, task = heapq.heappop(events)
        result = {"task": task, search.metric: score(searcher.running[str(each)].trial, task)}
        searcher.on_trial_result(str(each), result)
        if task == num_tasks or scheduler.on_trial_result(None, trials[each], result) != "CONTINUE":
            scheduler.on_trial_complete(None, trials[each], result)
            searcher.on_trial_complete(str(each), result)
        else:
            heapq.heappush(events, (now + _task_time(chance), each, task + 1))


def _task_time(chance: random.Random) -> float:
    return math.exp(chance.gauss(-(SIGMA**2) / 2, SIGMA))


def search_surface(
    search: SearchConfig, places: int, num_tasks: int, name: str, seed: int, times: int | None = None
) -> tuple[float, float]:
    """Simulate a search on a surface; return its duration, in mean durations of a task, and the regret of its winner.

    `times` is the seed of the tasks' durations (if None, `seed`).
    """
    surface, times = Surface(name, seed, num_tasks), seed if times is None else times

    def points() -> Any:
        return make_searcher(replace(search, seed=seed), SearchSpace(surface.space, {}, {}), num_tasks)

    if search.depends_on_timing:
        seconds, trials = simulate_timing(search, places, num_tasks, times, points, surface.score)
    else:
        found = simulate(search, places, num_tasks, sigma=SIGMA, seed=times, points=points, score=surface.score)
        seconds, trials = found.seconds, found.trials
    complete = [trial for trial in trials if num_tasks in trial.scores]
    winner = max(complete, key=lambda trial: trial.scores[num_tasks])
    return seconds, surface.regret(winner.point)


def search_surfaces(search: SearchConfig, places: int, num_tasks: int, draws: int) -> tuple[float, list[list[float]]]:
    """Simulate a search `draws` times on each surface; return its mean duration, and for each surface all regrets."""
    found = [[search_surface(search, places, num_tasks, name, seed) for seed in range(draws)] for name in SURFACES]
    return mean(seconds for each in found for seconds, _ in each), [[regret for _, regret in each] for each in found]


def print_regrets(trials: int, places: int, num_tasks: int, draws: int) -> None:
    """Print the winner's regret with brackets, with a window, and in a random search as long as with the window."""
    tpe = SearchConfig(trials=trials, searcher="tpe")
    brackets, fitted = fill_brackets(tpe, trials, num_tasks, places), inform_half(tpe, trials, places)
    rows = {f"brackets, {brackets.brackets_at_once} at once": brackets, f"window, lag {fitted.lag}": fitted}
    found = {name: search_surfaces(search, places, num_tasks, draws) for name, search in rows.items()}
    seconds, window = found[f"window, lag {fitted.lag}"]
    number, chosen = trials, fitted
    while True:  # as many random trials as take as long, in brackets, which are the faster way of a random search
        chosen = fill_brackets(SearchConfig(trials=number, searcher="random"), number, num_tasks, places)
        drawn = [simulate(chosen, places, num_tasks, sigma=SIGMA, seed=seed).seconds for seed in range(draws)]
        if mean(drawn) >= seconds:
            break
        number += tpe.bracket_size
    found[f"random, {number} trials"] = search_surfaces(chosen, places, num_tasks, draws)
    for name, (taken, regrets) in found.items():
        each = ", ".join(f"{surface} {mean(values):.3f}" for surface, values in zip(SURFACES, regrets))
        less = [a - b for mine, others in zip(regrets, window) for a, b in zip(mine, others)]
        error = stdev(less) / math.sqrt(len(less)) if len(less) > 1 else 0.0
        sys.stdout.write(
            f"{trials} trials, {places} places, {name}: {taken:.1f} task times; regret {each}; all "
            f"{mean(map(mean, regrets)):.3f}, {mean(less):+.3f} +- {error:.3f} over the window\n"
        )
        sys.stdout.flush()


def print_timing(trials: int, places: int, num_tasks: int, draws: int) -> None:
    """Print duration and regret with the default scheduler and ASHA, and how many winners depend on task durations."""
    base = SearchConfig(trials=trials, searcher="tpe")
    for search in (base, replace(base, scheduler="asha")):
        search = fit_search(search, trials, num_tasks, places)
        found = [
            [search_surface(search, places, num_tasks, name, seed, times) for times in (seed, seed + draws)]
            for name in SURFACES
            for seed in range(draws)
        ]
        changed = sum(one[1] != other[1] for one, other in found)
        sys.stdout.write(
            f"{trials} trials, {places} places, {search.scheduler}: {mean(one[0] for one, _ in found):.1f} task times; "
            f"regret {mean(one[1] for one, _ in found):.3f}; other times change {changed} of {len(found)} winners\n"
        )
        sys.stdout.flush()


def print_shares(num_tasks: int, draws: int) -> None:
    """Print duration and number of model-based trials for three options on clusters of several sizes.

    The options are brackets that fill the cluster, the default, and a window with half of the trials model-based.
    """
    for trials, places in (*SIZES, *LARGE):
        config = SearchConfig(trials=trials)
        number = min(draws, 2) if (trials, places) in LARGE else draws
        default = fit_search(config, trials, num_tasks, places)
        ways = [fill_brackets(config, trials, num_tasks, places), default]
        ways += [inform_half(config, trials, places)] if not default.lag else []
        for search in ways:
            drawn = [simulate(search, places, num_tasks, sigma=SIGMA, seed=seed) for seed in range(number)]
            how = f"lag {search.lag}" if search.lag else f"{search.brackets_at_once} brackets at once"
            sys.stdout.write(
                f"{trials:>4} trials, {places:>3} places, {how:<22}{' (default)' * (search == default):<10} "
                f"{_summary(drawn)}, {trials - count_random_trials(search, trials):>4} informed\n"
            )
            sys.stdout.flush()


def _summary(drawn: Sequence[Simulated]) -> str:
    return f"{mean(each.seconds for each in drawn):7.1f} s, {mean(each.busy for each in drawn):4.0%} busy"


def print_search(given: argparse.Namespace) -> None:
    """Print makespan and share of busy slots with one bracket, with brackets that fill the cluster, and by default."""
    config, share = SearchConfig(trials=given.trials), given.places / given.rows
    one = replace(config, brackets_at_once=1)
    ways = [(one, False), (one, True), (fill_brackets(config, given.trials, given.tasks, share), True)]
    ways.append((fit_search(config, given.trials, given.tasks, share), True))
    for search, keeps in dict.fromkeys(ways):
        drawn = [
            simulate(
                search, given.places, given.tasks, given.rows, given.sigma, given.seconds, given.start, keeps, seed
            )
            for seed in range(given.draws)
        ]
        how = f"lag {search.lag:>3}" if search.lag else f"{search.brackets_at_once:>3} brackets at once"
        kept = "processes kept" if keeps else "one process kept"
        sys.stdout.write(
            f"{given.trials} trials x {given.rows}, {given.places} places, {how}, {kept:<16}  {_summary(drawn)}\n"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table that the options select."""
    parser = argparse.ArgumentParser(prog="python -m tools.search_simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=64, help="trials of a search (default: %(default)s)")
    parser.add_argument("--places", type=int, default=8, help="trials that run at once (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=10, help="number of tasks of the stream (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1, help="rows of a table (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="mean time of a task (default: %(default)s)")
    parser.add_argument("--sigma", type=float, default=0.0, help="lognormal spread of this time (default: %(default)s)")
    parser.add_argument("--start", type=float, default=0.0, help="seconds to start a process (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=1, help="simulated searches (default: %(default)s)")
    parser.add_argument("--shares", action="store_true", help="informed trials and durations on 8 to 512 places")
    parser.add_argument("--regret", action="store_true", help="regret of the winner on synthetic surfaces")
    parser.add_argument("--timing", action="store_true", help="the default and ASHA, on synthetic surfaces")
    given = parser.parse_args(argv)
    if given.shares:
        print_shares(given.tasks, given.draws)
    elif given.timing:
        print_timing(given.trials, given.places, given.tasks, given.draws)
    elif given.regret:
        print_regrets(given.trials, given.places, given.tasks, given.draws)
    else:
        print_search(given)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
