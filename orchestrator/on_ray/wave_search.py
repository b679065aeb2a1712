"""Waves as a searcher of Ray Tune: each stretch of a trial, from one rung to the next, is a Tune trial of its own.

A stretch ends by itself after its last task and goes on from its commits in the next one, so that nothing is paused or
killed, and no worker waits for a decision while it holds a GPU. The rows of a table take turns; none waits for the wave
of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ray.tune.search import Searcher

from orchestrator.on_ray.plan import ListedRun, Outcome, TrialPlan
from orchestrator.on_ray.waves import Waves, WaveTrial

NUMBER = "ctvr.number"  # tag of a trial's run: of equally good trials the first is the winner


class Listener(Protocol):
    """Hears what was decided."""

    def stopped(self, row: str, number: int, label: str, task: int) -> None: ...

    def wave_ended(self, row: str, wave: int, waves: int | None) -> None: ...


@dataclass(frozen=True)
class Stretch:
    """A trial that is due, until after some task."""

    row: str
    trial: WaveTrial
    until: int


def label_of_trial(plan: TrialPlan, trial: WaveTrial) -> str:
    """The name of a trial within its sweep."""
    return f"{plan.settings.get('method')}-{trial.label}"


class WaveSearch(Searcher):
    """The searches of one or several rows, as stretches that Tune runs when there is room.

    Args:
        waves: row -> its search; "" where there are no rows.
        plans: row -> what its trials share.
        listener: hears what was decided.
    """

    def __init__(
        self, waves: Mapping[str, Waves], plans: Mapping[str, TrialPlan], listener: Listener | None = None
    ) -> None:
        super().__init__()
        self.waves, self.plans, self.listener = dict(waves), dict(plans), listener
        self.queues: dict[str, list[Stretch]] = {row: [] for row in waves}
        self.running: dict[str, Stretch] = {}  # trial id of Tune -> what it runs
        self.begun = dict.fromkeys(waves, 0)
        self._told: set[tuple[str, int]] = set()  # (row, number) of trials whose stop was said

    def decide(self) -> int:
        """Ask every row that nothing is run for what is due; returns how many stretches wait or run."""
        for row, waves in self.waves.items():
            if self.queues[row] or any(stretch.row == row for stretch in self.running.values()):
                continue
            ended = waves.ended
            due, until = waves.due()
            self.queues[row] = [Stretch(row, trial, until) for trial in due]
            self._say(row, waves, ended)
        return sum(map(len, self.queues.values())) + len(self.running)

    def _say(self, row: str, waves: Waves, ended: int) -> None:
        for trial in waves.trials:
            if trial.stopped and (row, trial.number) not in self._told and self.listener:
                self._told.add((row, trial.number))
                self.listener.stopped(row, trial.number, label_of_trial(self.plans[row], trial), trial.stopped)
        if self.listener and waves.ended > ended:
            is_known = waves.search.searcher != "grid"  # a grid is counted by walking it
            total = -(-waves.search.trials // waves.search.wave) if is_known else None
            self.listener.wave_ended(row, waves.ended, total)

    def suggest(self, trial_id: str) -> Any:
        if not self.decide():
            return Searcher.FINISHED
        ready = [row for row, queue in self.queues.items() if queue]
        if not ready:
            return None  # all that is due runs
        row = min(ready, key=lambda name: self.begun[name])  # the first in the table's order of those behind
        stretch = self.queues[row].pop(0)
        self.begun[row] += 1
        self.running[trial_id] = stretch
        plan, trial = self.plans[row], stretch.trial
        tags = {NUMBER: f"{trial.number:03d}"}
        until = stretch.until if stretch.until < self.waves[row].num_tasks else None
        run = ListedRun(label_of_trial(plan, trial), trial.point, plan.presets, tags, until)
        return {"row": row, "number": trial.number, "run": asdict(run)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if stretch := self.running.get(trial_id):
            self.waves[stretch.row].report(stretch.trial, result, stretch.until)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        stretch = self.running.pop(trial_id, None)
        if stretch is None:
            return
        if result and not error:
            self.waves[stretch.row].report(stretch.trial, result, stretch.until)
        self.waves[stretch.row].end(stretch.trial, stretch.until)

    def save(self, checkpoint_path: str) -> None:
        """The journal is what a resumed search goes on from."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""

    def outcome(self, row: str, seconds: float) -> Outcome:
        """How the trials of a row ended. Nothing is running any more."""
        waves = self.waves[row]
        is_over = not self.queues[row] and not any(each.row == row for each in self.running.values())
        is_over = is_over and not waves.due()[0]
        total = len(waves.trials) if is_over else max(len(waves.trials) + 1, waves.search.trials)
        complete = sum(trial.is_alive and waves.num_tasks in trial.scores for trial in waves.trials)
        stopped = sum(bool(trial.stopped) for trial in waves.trials)
        failed = sum(trial.failed for trial in waves.trials)
        tasks = sum(max(trial.scores, default=0) for trial in waves.trials)
        reused = sum(min(trial.reused, max(trial.scores, default=0)) for trial in waves.trials)
        return Outcome(total, complete, stopped, failed, total - complete - stopped - failed, seconds, tasks, reused)
