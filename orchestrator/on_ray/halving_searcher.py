"""Successive halving as a searcher of Ray Tune.

Each segment of a trial, from one rung to the next, is a separate Tune trial. A segment ends by itself after its last
task, and the next segment continues from its commits. So no trial is paused or killed, and no worker waits for a
decision while it holds a GPU. The rows of a table take turns; none waits for the trials of another row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ray.tune.search import Searcher

from ctvr.orchestrator.on_ray.journal import HalvingTrial
from ctvr.orchestrator.on_ray.plan import NUMBER, TIMING, RunSpec, SearchOutcome, TrialPlan
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving


class Listener(Protocol):
    """Callbacks for the decisions of a search."""

    def stopped(self, row: str, number: int, label: str, rung: int) -> None:
        """Handle a stop: trial `number` (from 1) with name `label` ends after task or epoch `rung`."""

    def trials_ended(self, row: str, trials: int, total: int | None) -> None:
        """Handle the end of the first `trials` trials; `total` is the number of trials, None if unknown."""


@dataclass(frozen=True)
class TrialSegment:
    """Segment of a trial that must run."""

    row: str
    trial: HalvingTrial
    until: int  # task or epoch after which the segment ends


def label_of_trial(plan: TrialPlan, trial: HalvingTrial) -> str:
    """Return the name of a trial within its sweep."""
    return f"{plan.settings.get('method')}-{trial.label}"


class HalvingSearcher(Searcher):
    """Runs the searches of one or several rows as segments, which Tune starts when resources are free.

    Args:
        halving: row of a table -> its search; the key is "" in a sweep.
        plans: row -> shared plan of its trials.
        listener: receives the decisions.
    """

    def __init__(
        self, halving: Mapping[str, SuccessiveHalving], plans: Mapping[str, TrialPlan], listener: Listener | None = None
    ) -> None:
        super().__init__()
        self.halving, self.plans, self.listener = dict(halving), dict(plans), listener
        self.queues: dict[str, list[TrialSegment]] = {row: [] for row in halving}
        self.running: dict[str, TrialSegment] = {}  # Tune's trial id -> segment
        self.begun = dict.fromkeys(halving, 0)
        self._reported: set[tuple[str, int]] = set()  # (row, number) of stopped trials that were reported

    def schedule(self) -> int:
        """Queue the segments of all rows that can start; return the number of segments that wait or run."""
        for row, halving in self.halving.items():
            ended, due = halving.ended, halving.next_segments()
            self.queues[row] += [TrialSegment(row, trial, until) for trial, until in due]
            if due or halving.ended > ended:
                self._report_decisions(row, halving, ended)
        return sum(map(len, self.queues.values())) + len(self.running)

    def segments_ahead(self) -> int:
        """Return an upper bound of concurrent segments from now on, which is the number of processes to keep."""
        return sum(halving.segments_ahead() for halving in self.halving.values())

    def _report_decisions(self, row: str, halving: SuccessiveHalving, ended: int) -> None:
        for trial in halving.trials:
            if trial.stopped and (row, trial.number) not in self._reported and self.listener:
                self._reported.add((row, trial.number))
                self.listener.stopped(row, trial.number, label_of_trial(self.plans[row], trial), trial.stopped)
        size, last = halving.search.bracket_size, len(halving.trials)
        if self.listener and (halving.ended // size > ended // size or ended < halving.ended == last):
            is_known = halving.search.searcher != "grid"  # the size of a grid is unknown
            self.listener.trials_ended(row, halving.ended, halving.search.trials if is_known else None)

    def suggest(self, trial_id: str) -> Any:
        if not self.schedule():
            return Searcher.FINISHED
        ready = [row for row, queue in self.queues.items() if queue]
        if not ready:
            return None  # no segment can start before a running one ends
        row = min(ready, key=lambda name: self.begun[name])  # the row with the fewest started segments
        segment = self.queues[row].pop(0)
        self.begun[row] += 1
        self.running[trial_id] = segment
        plan, trial = self.plans[row], segment.trial
        halving = self.halving[row]
        timing = {TIMING: halving.search.scheduler} if halving.search.depends_on_timing else {}
        tags = {NUMBER: f"{trial.number:03d}", **timing}
        stop = {f"stop_after_{halving.unit}": segment.until} if segment.until < halving.length else {}
        run = RunSpec(label_of_trial(plan, trial), trial.point, plan.presets, tags, **stop)
        return {"row": row, "number": trial.number, "run": asdict(run)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if segment := self.running.get(trial_id):
            self.halving[segment.row].report(segment.trial, result, segment.until)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        segment = self.running.pop(trial_id, None)
        if segment is None:
            return
        if result and not error:
            self.halving[segment.row].report(segment.trial, result, segment.until)
        halving = self.halving[segment.row]
        halving.end(segment.trial, segment.until, halving.search.depends_on_timing and not error)

    def on_pause(self, trial_id: str) -> None:
        """Do nothing; Tune's `HyperBandForBOHB` calls it."""

    def on_unpause(self, trial_id: str) -> None:
        """Do nothing; see `on_pause`."""

    def save(self, checkpoint_path: str) -> None:
        """Create the empty file that Tune expects; a resumed search reads the journal instead."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing; see `save`."""

    def outcome(self, row: str, seconds: float) -> SearchOutcome:
        """Count the outcomes of a row's trials. Call it when no trial is running."""
        halving = self.halving[row]
        is_over = not self.queues[row] and not any(each.row == row for each in self.running.values())
        is_over = is_over and not halving.next_segments()
        total = len(halving.trials) if is_over else max(len(halving.trials) + 1, halving.search.trials)
        complete = sum(trial.is_alive and halving.length in trial.scores for trial in halving.trials)
        stopped = sum(bool(trial.stopped) for trial in halving.trials)
        failed = sum(trial.failed for trial in halving.trials)
        finished = [(trial.reused, halving.finished_tasks(trial)) for trial in halving.trials]
        tasks, reused = sum(done for _, done in finished), sum(min(each) for each in finished)
        return SearchOutcome(
            total, complete, stopped, failed, total - complete - stopped - failed, seconds, tasks, reused
        )
