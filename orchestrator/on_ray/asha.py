"""An asynchronous search as a searcher of Ray Tune: a trial begins when there is room, and is stopped as it reports.

What it decides depends on which trial reports first (schedulers.py), so an interrupted search cannot ask the same
again. The journal keeps its points, what they reported and which were stopped: a searcher made anew is given the same
points, told the same results, and goes on from there. Nothing that Tune keeps of a search is ever read back: that would
be a pickle from a folder that others may write to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from orchestrator.config import Settings
from orchestrator.errors import ConfigError
from orchestrator.on_ray.plan import ListedRun, Outcome, SearchConfig, TrialPlan
from orchestrator.on_ray.wave_search import NUMBER, label_of_trial
from orchestrator.on_ray.waves import MAX_REPEATED, Journal, Suggests, WaveTrial, same_model


class Asynchronous:
    """One search.

    Args:
        make: a searcher that suggests the given points first, in their order.
        search: how many trials.
        num_tasks: of the stream.
        resolve: from a point to all settings that decide.
        journal: what is known already; `row` is this search's name there.
        total: number of trials, or of a grid's points.

    Raises:
        ConfigError: if the journal is that of another space.
    """

    def __init__(
        self,
        make: Callable[[Sequence[Settings]], Suggests],
        search: SearchConfig,
        num_tasks: int,
        resolve: Callable[[Mapping[str, Any]], Settings],
        total: int,
        journal: Journal | None = None,
        row: str = "",
    ) -> None:
        self.search, self.num_tasks, self.resolve, self.total = search, num_tasks, resolve, total
        self.journal, self.row = journal or Journal(None), row
        known = self.journal.begun(row)
        self.searcher = make([entry["point"] for entry in known])
        self.trials: list[WaveTrial] = []
        self.waiting: list[WaveTrial] = []  # of an interrupted search: begun, and not ended
        self._asked = 0
        self.is_exhausted = False
        for entry in known:
            self._take_over(entry)

    def _take_over(self, entry: Mapping[str, Any]) -> None:
        trial = None
        with contextlib.suppress(ValueError):  # Optuna's, for a value that is none of a setting's
            trial = self._suggested()
        if trial is None or trial.point != entry["point"]:
            raise ConfigError(
                f"{self.journal.file}: trial {entry['number']} is no point of what is searched ({entry['point']}). "
                "Start a new sweep; finished tasks are taken over."
            )
        self.journal.read(self.row, trial)
        trial.stopped = int(entry["stopped"])
        self.trials.append(trial)
        is_over = trial.stopped or self.num_tasks in trial.scores
        if not is_over:
            self.waiting.append(trial)
        for task in sorted(trial.scores):
            self.searcher.on_trial_result(trial.name, self._told(trial, task))
        if is_over:
            self.searcher.on_trial_complete(trial.name, self._told(trial, max(trial.scores)))

    def _suggested(self) -> WaveTrial | None:
        self._asked += 1
        name = f"{self._asked:05d}"
        point = self.searcher.suggest(name)
        if not isinstance(point, Mapping):
            return None
        return WaveTrial(len(self.trials) + 1, dict(point), self.resolve(point), name)

    def next(self) -> WaveTrial | None:
        """The trial that begins or goes on now; none if there is no further one."""
        if self.waiting:
            return self.waiting.pop(0)
        for _ in range(0 if self.is_exhausted or len(self.trials) >= self.total else MAX_REPEATED):
            if (trial := self._suggested()) is None:
                break
            if not any(trial.settings == other.settings or same_model(trial, other) for other in self.trials):
                self.trials.append(trial)
                self.journal.write(self.row, trial)
                return trial
            self.searcher.on_trial_complete(trial.name, error=True)  # which no searcher counts
        self.is_exhausted = True
        return None

    @property
    def has_begun_all(self) -> bool:
        return not self.waiting and (self.is_exhausted or len(self.trials) >= self.total)

    def report(self, trial: WaveTrial, result: Mapping[str, Any]) -> None:
        """Take in what a trial reported after a task; one that goes on may report again what is known."""
        task = int(result.get("task", 0))
        if not 0 < task <= self.num_tasks or self.search.metric not in result or task in trial.scores:
            return
        trial.take_in(task, float(result[self.search.metric]), result, task == self.num_tasks)
        self.journal.write(self.row, trial)
        self.searcher.on_trial_result(trial.name, self._told(trial, task))

    def end(self, trial: WaveTrial, is_error: bool) -> None:
        """A trial has ended: whole, stopped after its last report, or failed. The last is run again when resumed."""
        trial.failed = is_error or not trial.scores
        if not trial.failed and self.num_tasks not in trial.scores:
            trial.stopped = max(trial.scores)
            self.journal.write(self.row, trial)
        told = None if trial.failed else self._told(trial, max(trial.scores))
        self.searcher.on_trial_complete(trial.name, told, error=trial.failed)

    def _told(self, trial: WaveTrial, task: int) -> dict[str, Any]:
        return {"task": task, self.search.metric: trial.scores[task]}


class AsynchronousSearch(Searcher):
    """The searches of one or several rows, which share a cluster: rows take turns.

    Args:
        searches: row -> its search; "" where there are no rows.
        plans: row -> what its trials share.
    """

    def __init__(self, searches: Mapping[str, Asynchronous], plans: Mapping[str, TrialPlan]) -> None:
        super().__init__()
        self.searches, self.plans = dict(searches), dict(plans)
        self.begun = dict.fromkeys(searches, 0)
        self.running: dict[str, tuple[str, WaveTrial]] = {}  # trial id of Tune -> row, trial
        self.ended = sum(len(search.trials) - len(search.waiting) for search in searches.values())  # in an earlier life

    def suggest(self, trial_id: str) -> Any:
        for row in sorted(self.begun, key=lambda name: self.begun[name]):  # of those behind the first in order
            if (trial := self.searches[row].next()) is None:
                continue
            self.begun[row] += 1
            self.running[trial_id] = (row, trial)
            plan, tags = self.plans[row], {NUMBER: f"{trial.number:03d}"}
            run = ListedRun(label_of_trial(plan, trial), trial.point, plan.presets, tags)
            return {"row": row, "number": trial.number, "run": asdict(run)}
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        row, trial = self.running[trial_id]
        self.searches[row].report(trial, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if trial_id not in self.running:
            return
        row, trial = self.running.pop(trial_id)
        if result and not error:
            self.searches[row].report(trial, result)
        self.searches[row].end(trial, error)

    def scores(self, row: str) -> dict[str, dict[int, float]]:
        """Number of a trial -> finished tasks -> metric, of an interrupted search: what its rungs have seen."""
        return {str(trial.number): dict(trial.scores) for trial in self.searches[row].trials}

    def save(self, checkpoint_path: str) -> None:
        """The journal is what a resumed search goes on from."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""

    def outcome(self, row: str, seconds: float) -> Outcome:
        """How the trials of a row ended. Nothing is running any more."""
        search = self.searches[row]
        is_over = search.has_begun_all and not any(of == row for of, _ in self.running.values())
        trials, num_tasks = search.trials, search.num_tasks
        complete = sum(trial.is_alive and num_tasks in trial.scores for trial in trials)
        stopped, failed = sum(bool(trial.stopped) for trial in trials), sum(trial.failed for trial in trials)
        total = len(trials) if is_over else max(search.total, len(trials))
        tasks = sum(max(trial.scores, default=0) for trial in trials)
        reused = sum(min(trial.reused, max(trial.scores, default=0)) for trial in trials)
        return Outcome(total, complete, stopped, failed, total - complete - stopped - failed, seconds, tasks, reused)
