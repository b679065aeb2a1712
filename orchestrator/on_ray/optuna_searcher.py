"""Searcher based on Optuna's ask-and-tell interface."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search.optuna import OptunaSearch

from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.search_budget import MODELLED, count_startup_trials
from ctvr.orchestrator.on_ray.search_space import SearchSpace, is_grouped, within


class RunningTrials(optuna.storages.InMemoryStorage):
    """Storage that presents running trials with results as pruned, because Optuna's samplers ignore running trials."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: set[int] = set()  # numbers of trials with results

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        trials = list(map(self._present, super().get_all_trials(study_id, deepcopy)))
        return [trial for trial in trials if states is None or trial.state in states]

    def _present(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.state == TrialState.RUNNING and trial.number in self.reported:
            trial = copy.copy(trial)
            trial.state = TrialState.PRUNED
        return trial


class OptunaSearcher:
    """Samples points and passes results to Optuna; stopped trials and running trials with results count as pruned.

    Gains after different numbers of tasks are not comparable. If the last gain of a stopped trial were reported as its
    final result, the trial would look best.

    Args:
        search: settings of the search.
        space: the search space. A setting with a condition is sampled after the setting on which it depends, and only
            if the condition holds.
        first: points to evaluate first.
        num_tasks: number of tasks of the stream, or of epochs if trials are compared after epochs.
    """

    def __init__(
        self, search: SearchConfig, space: SearchSpace, first: Sequence[Mapping[str, Any]], num_tasks: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise Optuna prints a line for each study and trial
        self.search, self.space, self.num_tasks = search, space, num_tasks
        domains = OptunaSearch.convert_search_space(dict(space.space))
        self.domains: dict[str, BaseDistribution] = {name: domains[name] for name in space.parents_first()}
        directions = [StudyDirection.MINIMIZE if mode == "min" else StudyDirection.MAXIMIZE for mode in search.modes]
        self.running = RunningTrials()
        sampler = _make_sampler(search, space, len(first))
        self.study = optuna.create_study(storage=self.running, directions=directions, sampler=sampler)
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
        self.running.reported.add(self.trials[trial_id].number)
        if len(self.search.metrics) == 1:  # Optuna does not support intermediate values of several objectives
            self.trials[trial_id].report(result[self.search.metric], result["task"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self.trials[trial_id]
        if error or result is None:
            self.study.tell(trial, state=TrialState.FAIL)
        elif result["task"] < self.num_tasks:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            with warnings.catch_warnings():  # a trial with a NaN result counts as failed, with a warning
                warnings.simplefilter("ignore", UserWarning)
                self.study.tell(trial, [result[metric] for metric in self.search.metrics])


def _make_sampler(search: SearchConfig, space: SearchSpace, first: int) -> optuna.samplers.BaseSampler:
    """Create the sampler of a search; `first` is the number of points to evaluate first."""
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=search.seed)
    if search.searcher in MODELLED:
        with warnings.catch_warnings():  # constant_liar is experimental; it spreads concurrent trials
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            startup = count_startup_trials(search)
            sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=startup, constant_liar=True)
    if is_grouped(search, space):
        sampler = GroupedSampler(sampler, space.later, search.group_size, first)
    return sampler


def _draw(trial: optuna.Trial, name: str, domain: Any) -> None:
    """Sample a setting's value from a distribution of Optuna, which stores it in the trial."""
    if isinstance(domain, CategoricalDistribution):
        trial.suggest_categorical(name, domain.choices)
    elif isinstance(domain, IntDistribution):
        trial.suggest_int(name, domain.low, domain.high, step=domain.step, log=domain.log)
    else:
        trial.suggest_float(name, domain.low, domain.high, step=domain.step, log=domain.log)


def leader_of(number: int, size: int, first: int) -> int:
    """Return the number of the leader of a trial's group; trial and leader share their first task.

    Args:
        number: number of the trial from 0, in the order of suggestions.
        size: trials per group.
        first: number of points to evaluate first; each leads a group, whose other trials come after all these points.
    """
    if number < first:
        return number
    if number < first * size:
        return (number - first) // (size - 1)
    return number - (number - first * size) % size


class GroupedSampler(optuna.samplers.BaseSampler):
    """Sampler that samples as another one does, except for the settings that a group shares.

    Task-prefix reuse (keys/prefix_reuse.py) adopts tasks of a run that has read equal values so far, which never
    happens if all settings are drawn again for each trial. Here one trial of a group, its leader, is sampled freely.
    The others copy the leader's values of the settings that task 1 reads. The points to evaluate first lead the first
    groups.

    Args:
        inner: sampler of independent settings.
        later: settings that no task before the second reads.
        size: trials per group.
        first: see `leader_of`.
    """

    def __init__(self, inner: optuna.samplers.BaseSampler, later: Iterable[str], size: int, first: int) -> None:
        self.inner, self.later, self.size, self.first = inner, frozenset(later), size, first

    def reseed_rng(self) -> None:
        self.inner.reseed_rng()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}  # every setting is sampled independently

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        leader = leader_of(trial.number, self.size, self.first)
        if leader != trial.number and param_name not in self.later:
            shared = study.get_trials(deepcopy=False)[leader].params
            if param_name in shared:  # otherwise a condition on a later setting excludes it for the leader
                return shared[param_name]
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Any, trial: Any) -> None:
        self.inner.before_trial(study, trial)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        self.inner.after_trial(study, trial, state, values)
