"""Searcher based on Optuna's ask-and-tell interface."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState
from ray.tune.search.optuna import OptunaSearch

from ctvr.orchestrator.on_ray.grouped_sampler import GroupedSampler
from ctvr.orchestrator.on_ray.plan import SearchConfig, count_startup_trials
from ctvr.orchestrator.on_ray.search_space import SearchSpace, is_grouped, within


class OptunaSearcher:
    """Draws points, and passes results of complete trials to Optuna; a stopped trial counts as pruned.

    Gains after different numbers of tasks are not comparable: reported as a final result, that of a stopped trial would
        look best.

    Args:
        search: settings of the search.
        space: the search space. A setting with a condition is drawn after the setting that it depends on, where the
            condition holds.
        first: points to evaluate first.
        num_tasks: number of tasks of the stream, or epochs where trials are compared after epochs.
    """

    def __init__(
        self, search: SearchConfig, space: SearchSpace, first: Sequence[Mapping[str, Any]], num_tasks: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise Optuna prints a line for each study and trial
        self.search, self.space, self.num_tasks = search, space, num_tasks
        domains = OptunaSearch.convert_search_space(dict(space.space))
        self.domains: dict[str, BaseDistribution] = {name: domains[name] for name in space.parents_first()}
        directions = [StudyDirection.MINIMIZE if mode == "min" else StudyDirection.MAXIMIZE for mode in search.modes]
        self.study = optuna.create_study(directions=directions, sampler=_sampler(search, space, len(first)))
        for point in first:
            self.study.enqueue_trial(dict(point))
        self.trials: dict[str, optuna.Trial] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        trial = self.trials[trial_id] = self.study.ask()
        for name, domain in self.domains.items():
            if self.space.applies(name, trial.params):
                _draw(trial, name, domain)
        return within(trial.params, self.space.at_most)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if len(self.search.metrics) == 1:  # Optuna does not support intermediate values of several objectives
            self.trials[trial_id].report(result[self.search.metric], result["task"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self.trials[trial_id]
        if error or result is None:
            self.study.tell(trial, state=TrialState.FAIL)
        elif result["task"] < self.num_tasks:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            with warnings.catch_warnings():  # a trial without a number has failed
                warnings.simplefilter("ignore", UserWarning)
                self.study.tell(trial, [result[metric] for metric in self.search.metrics])


def _sampler(search: SearchConfig, space: SearchSpace, first: int) -> optuna.samplers.BaseSampler:
    """Make the sampler of a search; `first` is the number of points to evaluate first."""
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=search.seed)
    if search.searcher in ("tpe", "grouped_tpe"):
        with warnings.catch_warnings():  # constant_liar is experimental; it spreads concurrent trials
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            startup = count_startup_trials(search)
            sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=startup, constant_liar=True)
    if is_grouped(search, space):
        sampler = GroupedSampler(sampler, space.later, search.group_size, first)
    return sampler


def _draw(trial: optuna.Trial, name: str, domain: Any) -> None:
    """Draw a setting's value from one of Optuna's distributions."""
    if isinstance(domain, CategoricalDistribution):
        trial.suggest_categorical(name, domain.choices)
    elif isinstance(domain, IntDistribution):
        trial.suggest_int(name, domain.low, domain.high, step=domain.step, log=domain.log)
    else:
        trial.suggest_float(name, domain.low, domain.high, step=domain.step, log=domain.log)
