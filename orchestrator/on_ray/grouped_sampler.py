"""Optuna sampler for groups of trials with equal settings of their first task, which is then trained once per group.

Task-prefix reuse (keys/prefix_reuse.py) adopts tasks of a run that has read equal values so far, which never happens if
all settings are sampled again for each trial. Here one trial of a group, its leader, is sampled freely. The other
trials copy the leader's values of the settings that task 1 reads, and only later settings (`later=True` of
search_spaces) are sampled again. The points to evaluate first are the leaders of the first groups. The number of a
trial determines its group and its position in the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import optuna


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
    """Sampler that uses another sampler, except for the settings that a group shares.

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
