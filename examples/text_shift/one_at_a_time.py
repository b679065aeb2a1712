"""Example of a searcher in another package: it changes one setting of the best trial so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class OneAtATime:
    """Searcher that suggests the settings of the best complete trial, by the first objective, with one setting changed.

    The changed setting is the next one of the space in turn.

    Args:
        search: settings of the search (`search.*`): its seed, and the `metrics` and `modes` of its objectives.
        space: `space` maps settings to domains of Ray Tune; `recommended` holds their values without a search.
        num_tasks: number of tasks of the stream; a complete trial has results of all of them.
    """

    def __init__(self, search: Any, space: Any, num_tasks: int) -> None:
        self.search, self.space, self.num_tasks = search, space, num_tasks
        self.chance = np.random.default_rng(search.seed)
        self.points: dict[str, dict[str, Any]] = {}
        self.best, self.point = -np.inf, dict(space.recommended)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        point = dict(self.point)
        if self.points:  # the first trial has the recommended settings
            name = list(self.space.space)[len(self.points) % len(self.space.space)]
            point[name] = self.space.space[name].sample(random_state=self.chance)
        self.points[trial_id] = point
        return point

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Do nothing, because only results after the last task are compared."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        if result is None or error or result["task"] < self.num_tasks:
            return
        value = result[self.search.metrics[0]] * (1 if self.search.modes[0] == "max" else -1)
        if value > self.best:
            self.best, self.point = value, self.points[trial_id]
