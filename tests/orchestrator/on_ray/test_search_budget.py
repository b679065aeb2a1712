"""Brackets, lags and random trials of a search for the size of its cluster."""

from dataclasses import replace
from statistics import mean
from typing import Any

import optuna
import pytest

from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.search_budget import (
    brackets_for,
    count_random_trials,
    fill_brackets,
    fit_search,
    inform_half,
)
from ctvr.orchestrator.on_ray.search_time import SIGMA, simulate, task_times
from tests.orchestrator.on_ray.test_successive_halving import halving, run


@pytest.mark.parametrize(
    ("trials", "tasks", "places", "brackets"),
    [
        (8, 5, 2, 1),  # make sweep
        (8, 5, 64, 1),
        (64, 10, 1, 1),
        (64, 10, 2, 1),
        (64, 10, 8, 4),
        (64, 10, 16, 7),
        (1000, 10, 512, 125),
        (12, 10, 512, 2),
    ],
)
def test_as_many_brackets_run_at_once_as_fill_the_cluster(trials, tasks, places, brackets):
    assert brackets_for(SearchConfig(trials=trials), trials, tasks, places) == brackets
    assert brackets_for(SearchConfig(trials=trials, scheduler="none"), trials, tasks, places) <= brackets


RULES: list[tuple[int, dict[str, Any]]] = [
    (8, {}),
    (40, {"brackets_at_once": 1}),
    (40, {"brackets_at_once": 2}),
    (24, {"bracket_size": 4, "brackets_at_once": 3}),
    (24, {"brackets_at_once": 3}),
    (64, {"brackets_at_once": 4}),
    (40, {"lag": 8}),
    (40, {"lag": 11, "bracket_size": 4}),
    (24, {"lag": 24}),
]


@pytest.mark.parametrize(("trials", "rule"), RULES)
def test_trials_that_tpe_draws_at_random_are_counted(monkeypatch, trials, rule):
    search = SearchConfig(trials=trials, searcher="tpe", **rule)
    made = halving(search)
    drawn: list[int] = []
    sample = optuna.samplers.RandomSampler.sample_independent

    def watched(self: Any, study: Any, trial: Any, *more: Any) -> Any:
        drawn.append(trial.number)
        return sample(self, study, trial, *more)

    monkeypatch.setattr(optuna.samplers.RandomSampler, "sample_independent", watched)
    run({"": made}, room=5, seed=0)
    random = {int(trial.name) - 1 for trial in made.trials} & set(drawn)
    count = count_random_trials(search, trials)
    tried_first = 1  # the recommended point
    assert random == {int(trial.name) - 1 for trial in made.trials[tried_first:count]}


@pytest.mark.parametrize("places", [16, 32, 64, 512])
@pytest.mark.parametrize("more", [4, 6, 8])
def test_half_of_the_trials_are_informed_where_there_are_four_for_each_place(places, more):
    trials = more * places
    search = fit_search(SearchConfig(trials=trials), trials, 10, places)
    assert search.lag > 0
    assert 2 * count_random_trials(search, trials) <= trials


@pytest.mark.parametrize(("trials", "places"), [(64, 8), (64, 16), (128, 32)])
def test_an_informed_search_takes_as_long_as_brackets_that_are_random(trials, places):
    config = SearchConfig(trials=trials)
    brackets, informed = fill_brackets(config, trials, 10, places), fit_search(config, trials, 10, places)
    assert 2 * count_random_trials(brackets, trials) > trials >= 2 * count_random_trials(informed, trials)
    seconds = [
        mean(simulate(way, places, 10, sigma=SIGMA, seed=seed).seconds for seed in range(4))
        for way in (brackets, informed)
    ]
    assert seconds[1] <= 1.05 * seconds[0]


def test_few_places_few_trials_and_other_searchers_keep_brackets():
    for config, places in (
        (SearchConfig(trials=8), 64),
        (SearchConfig(trials=32), 64),
        (SearchConfig(trials=64), 4),
        (SearchConfig(trials=64), 32),  # half of them informed would take 1.7 times as long
        (SearchConfig(trials=64, searcher="random"), 16),
        (SearchConfig(trials=64, metric="gain,forgetting", mode="max,min"), 16),
    ):
        assert fit_search(config, config.trials, 10, places) == fill_brackets(config, config.trials, 10, places)
    given = SearchConfig(trials=128, lag=20)
    assert fit_search(given, 128, 10, 32) == given
    begun = SearchConfig(trials=128, brackets_at_once=14)  # as recorded in the plans of earlier versions
    assert fit_search(begun, 128, 10, 32) == begun


def test_large_clusters_are_simulated_in_proportion():
    config = SearchConfig(trials=256)
    for way in fill_brackets(config, 256, 10, 64), inform_half(config, 256, 64):
        exact = mean(simulate(way, 64, 10, sigma=SIGMA, seed=seed).seconds for seed in range(3))
        assert task_times(way, 256, 10, 64, draws=3) == pytest.approx(exact, rel=0.15)


def test_all_at_once_is_random():
    config = replace(SearchConfig(trials=64), lag=64)
    assert count_random_trials(config, 64) == 64
    assert count_random_trials(replace(config, searcher="grid"), 64) == 0
