"""Rungs, brackets, `search.lag` and number of random trials, computed from the size of a search and of its cluster."""

from __future__ import annotations

import math
from dataclasses import replace

from ctvr.orchestrator.on_ray.plan import SearchConfig

MODELLED = ("tpe", "grouped_tpe")  # searchers that draw at random until enough results are known
FREE_FROM = 4  # trials per worker slot; with fewer, a lag that informs half of the trials takes longer than brackets
ENOUGH = 10  # number of decided trials from which TPE models results, in searches of 30 trials and more


def rungs(grace: int, reduction: int, length: int) -> list[int]:
    """Return the tasks (or epochs) after which trials are compared: `grace * reduction**i` below `length`, i >= 0.

    Args:
        grace: first task or epoch of a comparison.
        reduction: ratio of two successive rungs, >= 2.
        length: number of tasks or epochs of a trial.
    """
    found = []
    while grace < length:
        found.append(grace)
        grace *= reduction
    return found


def mean_tasks(search: SearchConfig, trials: int, length: int) -> float:
    """Return the mean number of tasks (or epochs) that a trial of a bracket trains; a complete trial has `length`."""
    size = left = min(search.bracket_size, trials)
    before, work = 0, 0
    for rung in rungs(search.grace_tasks, search.reduction_factor, length) if search.scheduler == "halving" else []:
        work, before = work + left * (rung - before), rung
        left = search.kept(left)
    return (work + left * (length - before)) / size


def brackets_for(search: SearchConfig, trials: int, length: int, places: float) -> int:
    """Return the number of concurrent brackets that keep a cluster busy.

    Fewer trials continue after each rung. On average over its duration (work / `length`), a bracket of 8 trials of 10
    tasks occupies 2.8 worker slots. A fifth more brackets compensate for the time in which brackets wait for each other
    (`python -m tools.search_simulation`).

    Args:
        search: settings of the search.
        trials: number of trials of the search.
        length: number of tasks of the stream, or of epochs if trials are compared after epochs.
        places: number of worker slots, that is of trials that the cluster can run at once.
    """
    work = mean_tasks(search, trials, length) * min(search.bracket_size, trials)
    brackets = math.ceil(1.2 * places * length / work)
    return max(1, min(brackets, math.ceil(trials / search.bracket_size)))


def count_known(search: SearchConfig, number: int, later: int = 0, length: int = 1) -> int:
    """Return the n for which trial `number` is proposed from the results of the trials 1 to n.

    Args:
        search: settings of the search.
        number: number of the proposed trial, from 1.
        later: number of tasks between the first rung and the rung whose results are used; 0: the first rung. While a
            trial trains these tasks, other trials start: `search.lag` trials in the time of `mean_tasks` tasks. With
            brackets it has no effect, because all results of a bracket are used when the bracket has ended.
        length: number of tasks of the stream.
    """
    if search.lag:
        tasks = mean_tasks(search, search.trials, length) if later else 1
        return max(0, number - math.ceil(search.lag * (1 + later / tasks)))
    return max(0, (number - 1) // search.bracket_size + 1 - max(1, search.brackets_at_once)) * search.bracket_size


def count_startup_trials(search: SearchConfig) -> int:
    """Return the number of decided trials from which TPE models results; with fewer trials it samples at random."""
    return max(3, min(ENOUGH, search.trials // 3))


def count_random_trials(search: SearchConfig, trials: int) -> int:
    """Return how many of the `trials` trials of a search are sampled at random: all, or those before TPE's model.

    TPE samples a trial at random if fewer than `count_startup_trials` trials were compared at the first rung before it
    is proposed. In brackets, these trials must have ended.
    """
    if search.searcher not in MODELLED:
        return trials if search.searcher == "random" else 0
    enough = count_startup_trials(search)
    return sum(count_known(search, number) < enough for number in range(1, trials + 1))


def fill_brackets(search: SearchConfig, trials: int, length: int, places: float) -> SearchConfig:
    """Return the settings with as many concurrent brackets as fill a cluster. See `brackets_for` for the arguments."""
    return replace(search, lag=0, brackets_at_once=brackets_for(search, trials, length, places))


def inform_half(search: SearchConfig, trials: int, places: float) -> SearchConfig:
    """Return the settings with a `search.lag` that keeps a cluster busy and makes at most half of the trials random."""
    half = trials // 2 - count_startup_trials(search) + 1
    return replace(search, lag=max(1, min(max(search.bracket_size, math.ceil(2 * places)), half)), brackets_at_once=0)


def fit_search(search: SearchConfig, trials: int, length: int, places: float) -> SearchConfig:
    """Return the settings of a search that suit a cluster: `search.lag` for TPE, otherwise brackets.

    TPE also uses brackets in three cases. (1) One bracket has more trials than the cluster has worker slots. (2) There
    are too few trials for a lag: if at most half of them are random, the lag is below `bracket_size`, or the search
    takes longer than with brackets. (3) There are several objectives, for which TPE uses complete trials only.

    A lag or brackets that the user gave are kept. See `brackets_for` for the arguments.
    """
    if search.lag or search.brackets_at_once:
        return search
    informed = inform_half(search, trials, places)
    is_free = trials >= FREE_FROM * places and search.bracket_size <= min(places, informed.lag)
    if search.searcher in MODELLED and len(search.modes) == 1 and is_free:
        return informed
    return fill_brackets(search, trials, length, places)
