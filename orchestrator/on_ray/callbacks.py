"""Tune callbacks that report progress, adjust concurrency to the cluster, and close the MLflow runs of ended trials."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from ctvr.orchestrator.console import count, format_duration, say
from ctvr.orchestrator.errors import TrialFailed
from ctvr.orchestrator.on_ray.failures import MOST_SHORT_OF_MEMORY, is_lost_node, is_oom_kill, last_output
from ctvr.orchestrator.on_ray.internals import error_of
from ctvr.orchestrator.on_ray.memory import PROCESS, await_memory
from ctvr.orchestrator.on_ray.nodes import is_started_here
from ctvr.orchestrator.on_ray.plan import TrialPlan, run_name
from ctvr.orchestrator.on_ray.tracking_queue import TrackingQueue
from ctvr.orchestrator.on_ray.watch import TrialWatch
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.streams.metric_names import progress_text
from ctvr.orchestrator.tracking.tracker import Tracker

if TYPE_CHECKING:
    from ctvr.orchestrator.on_ray.concurrency import ConcurrencyController
    from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher

Plans = Mapping[str, TrialPlan]  # row of a table -> shared plan of its trials; "" if there are no rows
MOST_LOST_NODES = 50  # number of node losses that the driver of a trial survives
MEMORY_SECONDS = 20.0  # maximum wait for free memory before a process restarts, in a cluster on this machine


def failures_of_process(plan: TrialPlan) -> int:
    """Return Tune's retry limit for a trial's process: the limit of a single worker, or 1 for a driver of several.

    Ray Train restarts the workers of a driver and counts their failures.
    """
    return plan.max_failures if plan.workers == 1 else 1


class TrialMonitor(tune.Callback):
    """Prints a line for each finished task, and closes the MLflow runs of failed trials.

    Args:
        plans: plans of the trials.
        trials: number of trials.
        num_tasks: number of tasks of the stream.
        concurrent: number of concurrent trials.
        room: the `ConcurrencyController` of the cluster; if None, `concurrent` does not change.
    """

    def __init__(
        self,
        plans: TrialPlan | Plans,
        trials: int,
        num_tasks: int,
        concurrent: int,
        room: ConcurrencyController | None = None,
    ) -> None:
        self.plans: Plans = {"": plans} if isinstance(plans, TrialPlan) else plans
        self.trials, self.num_tasks, self.concurrent, self.room = trials, num_tasks, concurrent, room
        self.records = TrackingQueue()
        self.numbers: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.ended: set[str] = set()
        self._short: dict[str, int] = {}  # trial -> out-of-memory kills since its last finished task
        self._begun: dict[str, float] = {}
        self._times: list[float] = []  # seconds of each complete trial
        session = next(iter(self.plans.values())).session
        self.watch = TrialWatch(session, self._plan, self._label)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self.watch.look(trials)
        concurrent = self.room.update(self._left(), self._running()) if self.room else None
        if self.room and concurrent is not None:
            self.concurrent = concurrent
            line = f"the cluster now has resources for {concurrent} concurrent trials"
            if self.room.others:
                waiting = f"other drivers waiting: {self.room.others}"
                line = f"this sweep now runs at most {count(concurrent, 'trial')} at once ({waiting})"
            say(line, with_time=True)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._label(trial)
        self._begun.setdefault(trial.trial_id, time.monotonic())
        self.ended.discard(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        unit, length = self._counts(trial)
        done, seen_as = int(result.get(unit, 0)), self._seen_as(trial)
        if done <= self.seen.get(seen_as, 0):  # reported again after a restart
            return
        self.seen[seen_as] = done
        self._short.pop(trial.trial_id, None)
        if (plan := self._plan(trial)).workers == 1:  # failures are counted from the last finished task
            trial.max_failures = trial.num_failures + failures_of_process(plan)
        parts = [self._label(trial), f"{unit} {done}/{length}", progress_text(result)]
        if "task" in result:
            is_reused = int(result["task"]) <= int(result.get("reused", 0))
            parts.append("trained by another trial" if is_reused else f"{result.get('seconds', math.nan):.1f} s")
        say("  ".join(parts), with_time=True)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        task = self.seen.get(trial.trial_id, 0)
        self.ended.add(trial.trial_id)
        if task >= self.num_tasks and trial.trial_id in self._begun:
            self._times.append(time.monotonic() - self._begun[trial.trial_id])
            took = format_duration(self._times[-1])
            say(f"{self._label(trial)}  complete after {took}{self._outlook()}", with_time=True)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Adjust the trial's failure limit, because Tune also counts process deaths due to lost nodes.

        A permanent error is not retried: the next attempt finds the message in Ray's key-value store and ends.
        """
        error = _error(trial)
        is_killed = trial.trial_id in self.watch.killed
        self.watch.killed.discard(trial.trial_id)
        if (is_killed or is_lost_node(error)) and trial.max_failures < MOST_LOST_NODES:
            trial.max_failures += 1
        elif is_oom_kill(error):
            say(f"{self._label(trial)}  out of memory: Ray ended the process; it restarts", with_time=True)
            self._short[trial.trial_id] = self._short.get(trial.trial_id, 0) + 1
            if self._short[trial.trial_id] <= MOST_SHORT_OF_MEMORY:
                trial.max_failures += 1
            if is_started_here():
                await_memory(PROCESS, MEMORY_SECONDS)
        elif getattr(_innermost(error), "is_permanent", False):
            trial.max_failures = trial.num_failures
        self._store_output(trial, error)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.add(trial.trial_id)
        reason = _reason(trial)
        say(f"{self._label(trial)}  failed: {reason}", with_time=True)
        self._store_output(trial, _error(trial))
        plan = self._plan(trial)
        self._close_run(plan, run_name(plan, trial.config), "FAILED", {"ctvr.error": reason})

    def _store_output(self, trial: Any, error: BaseException) -> None:
        """Store the last output of a failed worker in the trial's MLflow run, or else in the sweep's run."""
        plan, inner = self._plan(trial), _innermost(error)
        words = last_output(inner)
        if not words:
            return
        name, number = run_name(plan, trial.config), trial.num_failures

        def keep() -> None:
            tracker = Tracker(plan.tracking_uri, Path(plan.root))
            runs = [run.run_id for run in tracker.find_runs(sweep=plan.sweep, tags={"ctvr.trial": name})]
            for run in runs or filter(None, [plan.parent]):
                tracker.log_text(run, f"failures/{'' if runs else f'{name}-'}{number}.txt", words)

        self.records.add(f"failure output of {name}", keep)

    def _plan(self, trial: Any) -> TrialPlan:
        return self.plans[trial.config.get("row", "")]

    def _seen_as(self, trial: Any) -> str:
        return str(trial.trial_id)

    def _counts(self, trial: Any) -> tuple[str, int]:
        """Return the unit of a trial's reports (tasks or epochs) and their total number."""
        return "task", self.num_tasks

    def _left(self) -> int:
        """Return the number of trials that still need resources."""
        return self.trials - len(self.ended)

    def _label(self, trial: Any) -> str:
        if "number" in trial.config:  # in a search; every row has the same number of trials
            number, many, what = trial.config["number"], self.trials // len(self.plans), trial.config["row"]
        else:
            number = self.numbers.setdefault(trial.trial_id, len(self.numbers) + 1)
            many, what = self.trials, trial.config["run"]["label"]
        return f"trial {number}/{many} {what}".rstrip()

    def _running(self) -> int:
        return len(self._begun.keys() - self.ended)

    def processes_ahead(self) -> int:
        """Return how many idle processes to keep for later trials; fewer while other drivers wait for resources."""
        ahead = self._segments_ahead()
        return min(ahead, self.concurrent - self._running()) if self.room and self.room.others else ahead

    def _segments_ahead(self) -> int:
        """Return an upper bound of the trials that will request a process, except trials that have or await one."""
        return self.trials - len(self._begun)

    def _outlook(self) -> str:
        """Return a text with the number of remaining trials and an estimate of their time; "" if none remain."""
        if (left := self._left()) <= 0:
            return ""
        mean = sum(self._times) / len(self._times)
        return f"; {left} remain, about {format_duration(math.ceil(left / self.concurrent) * mean)}"

    def _close_run(self, plan: TrialPlan, name: str, status: str, tags: dict[str, str]) -> None:
        def close() -> None:
            tracker = Tracker(plan.tracking_uri, Path(plan.root))
            for run in tracker.find_runs(sweep=plan.sweep, tags={"ctvr.trial": name}):
                tracker.set_tags(run.run_id, tags)
                tracker.close(run.run_id, status)

        self.records.add(f"end of run {name}", close)


class BracketMonitor(TrialMonitor):
    """Monitors a search, whose trials run in segments; to Tune, each segment is a trial.

    Args:
        plans, num_tasks, concurrent, room: see `TrialMonitor`.
        trials: number of trials per row.
        search: the searcher, which counts waiting and running segments.

    It is the `Listener` of the searcher.
    """

    def __init__(
        self,
        plans: Plans,
        trials: int,
        num_tasks: int,
        concurrent: int,
        room: ConcurrencyController | None,
        search: HalvingSearcher,
    ) -> None:
        super().__init__(plans, trials, num_tasks, concurrent, room)
        self.search = search
        self._started = time.monotonic()

    def _left(self) -> int:
        return max(1, self.search.schedule())

    def _running(self) -> int:
        return len(self.search.running)

    def _segments_ahead(self) -> int:
        return self.search.segments_ahead() - len(self.search.running)

    def _label(self, trial: Any) -> str:
        return self._name(trial.config["row"], trial.config["number"])

    def _name(self, row: str, number: int) -> str:
        many = "" if self.search.halving[row].search.searcher == "grid" else f"/{self.trials}"
        return f"trial {number}{many} {row}".rstrip()

    def _seen_as(self, trial: Any) -> str:
        return self._label(trial)

    def _counts(self, trial: Any) -> tuple[str, int]:
        halving = self.search.halving[trial.config["row"]]
        return halving.unit, halving.length

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.seen.get(self._seen_as(trial), 0) >= self._counts(trial)[1]:
            say(f"{self._label(trial)}  complete", with_time=True)

    def stopped(self, row: str, number: int, label: str, rung: int) -> None:
        """Report that better trials stopped trial `number` of a row at a rung, and close its MLflow run."""
        halving = self.search.halving[row]
        after = f"after {halving.unit} {rung}"
        say(f"{self._name(row, number)}  stopped {after}: others are better", with_time=True)
        name = f"{self.plans[row].sweep}-{label}"
        self._close_run(self.plans[row], name, "FINISHED", {"ctvr.stopped": f"{halving.search.scheduler} {after}"})

    def trials_ended(self, row: str, trials: int, total: int | None) -> None:
        """Report that the first `trials` trials of a row ended; estimate the remaining time if `total` is not None."""
        taken = time.monotonic() - self._started
        left = taken / trials * ((total or trials) - trials)
        outlook = f"; about {format_duration(left)} remain" if total and trials < total else ""
        number = f"{trials} of {total}" if total else trials
        say(f"{row} the first {number} trials ended after {format_duration(taken)}{outlook}".lstrip(), with_time=True)


NO_REASON = "no reason was recorded"


def _error(trial: Any) -> BaseException:
    """Return the error that ended a trial, or a TrialFailed without a reason if none was reported."""
    return error_of(trial) or TrialFailed(NO_REASON)


def _innermost(error: Any) -> BaseException:
    """Return the original error, which exceptions of Ray and Tune wrap."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    return error


def _reason(trial: Any) -> str:
    """Return the reason of a trial's failure in one line."""
    error = _innermost(_error(trial))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, TrialFailed):
        return lines[0][:400] if lines else NO_REASON
    return f"{type(error).__name__}: {redact(lines[0])[:300]}" if lines else type(error).__name__
