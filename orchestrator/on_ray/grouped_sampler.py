"""Optuna sampler for groups of trials with equal settings of their first task, which is then trained once per group.

Task-prefix reuse (keys/prefix_reuse.py) adopts tasks of a run that has read the same values so far, which never
happens if all settings are drawn again for each trial. Here one trial of a group, its leader, is sampled freely. The
others share its values of the settings that task 1 reads; only those read later (`later=True` of search_spaces) are
drawn again. The points that are tried first lead the first groups. A trial's position in its group follows from its
number alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import optuna


def leader_of(number: int, size: int, first: int) -> int:
    """Return the leader of the group of trial `number` (from 0), whose first task the trial shares.

    Args:
        number: number of a trial, in the order of suggestions.
        size: trials per group.
        first: number of points to evaluate first; each leads a group, whose other trials come after all these points.
    """
    if number < first:
        return number
    if number < first * size:
        return (number - first) // (size - 1)
    return number - (number - first * size) % size


class GroupedSampler(optuna.samplers.BaseSampler):
    """Samples like another sampler, except for the settings that a group shares.

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
            if param_name in shared:  # else a condition on a later setting excludes it there
                return shared[param_name]
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Any, trial: Any) -> None:
        self.inner.before_trial(study, trial)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        self.inner.after_trial(study, trial, state, values)
