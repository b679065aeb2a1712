"""Stopping trials by finished tasks, while they run and in the order in which they report: ASHA.

The default is another one, which decides from results alone: waves.py. ASHA keeps every worker busy; what it
decides depends on which trial reports first (Li et al., arXiv:1810.05934, algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.on_ray.plan import SearchConfig, rungs


class TaskHalving(FIFOScheduler):
    """ASHA whose time is the number of finished tasks; it compares trials after the same task only.

    A trial that reaches a rung is stopped if it is below the best 1 / reduction of those that were there before it. Its
    last report never ends it: there is nothing left to save. A table's trials are compared within their row.

    Args:
        search: metric, mode, grace and reduction.
        num_tasks: of the stream.
        rows: of a table.
    """

    def __init__(self, search: SearchConfig, num_tasks: int, rows: Sequence[str] = ("",)) -> None:
        super().__init__()
        self.metric_name, self.num_tasks = search.metric, num_tasks
        self._passing = 100 * (1 - 1 / search.reduction)  # percentile
        self._better = 1.0 if search.mode == "max" else -1.0
        self._rungs = rungs(search.grace_tasks, search.reduction, num_tasks)
        self._scores: dict[str, dict[int, dict[str, float]]] = {row: {rung: {} for rung in self._rungs} for row in rows}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        task, value = int(result.get("task", 0)), result.get(self.metric_name)
        reached = [rung for rung in self._rungs if rung <= task]
        if task >= self.num_tasks or value is None or not reached:
            return str(TrialScheduler.CONTINUE)
        number, recorded = str(trial.config["number"]), self._scores[trial.config["row"]][reached[-1]]
        if number in recorded:  # reported again, or between two rungs
            return str(TrialScheduler.CONTINUE)
        before = [score for score in recorded.values() if not math.isnan(score)]
        recorded[number] = self._better * value
        is_behind = bool(before) and not recorded[number] >= np.percentile(before, self._passing)
        return str(TrialScheduler.STOP if is_behind else TrialScheduler.CONTINUE)

    def remember(self, scores: Mapping[str, Mapping[int, float]], row: str = "") -> None:
        """Take in what earlier processes of this sweep measured: number of a trial -> finished tasks -> metric."""
        for rung, recorded in self._scores[row].items():
            for number, by_task in scores.items():
                reached = [task for task in by_task if task >= rung]
                if reached:
                    recorded[number] = self._better * by_task[min(reached)]
