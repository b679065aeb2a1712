"""Watches trials while they run: what is said of them, the room they have, the records that they leave open."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from ctvr.orchestrator.console import format_duration, say
from ctvr.orchestrator.errors import ConfigError, TrialFailed
from ctvr.orchestrator.on_ray.capacity import capacity, request_resources_for
from ctvr.orchestrator.on_ray.failures import MOST_SHORT_OF_MEMORY, fetch_actor_log, is_lost_node, is_oom_kill
from ctvr.orchestrator.on_ray.internals import error_of, kv_get
from ctvr.orchestrator.on_ray.memory import PROCESS, await_memory
from ctvr.orchestrator.on_ray.nodes import is_started_here
from ctvr.orchestrator.on_ray.plan import TrialPlan, run_name, still_note
from ctvr.orchestrator.on_ray.tracking_queue import TrackingQueue
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.streams.metric_names import progress_text
from ctvr.orchestrator.tracking.tracker import Tracker

if TYPE_CHECKING:
    from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher

Plans = Mapping[str, TrialPlan]  # row of a table -> what its trials share; "" where there are no rows
LOOK_SECONDS = 10.0  # how often it is looked whether nodes came or went
MOST_LOST_NODES = 50  # that one trial's driver may lose
MEMORY_SECONDS = 20.0  # that a search on this machine alone waits for memory before a process starts again
ASK_SECONDS = 60.0  # how often the request for machines is made anew: other sweeps on the cluster overwrite it


def failures_of_process(plan: TrialPlan) -> int:
    """How often Tune starts the process of a trial again: a worker's limit, or one for the driver of several.

    The workers of a driver are started again by Ray Train, which counts for itself.
    """
    return plan.max_failures if plan.workers == 1 else 1


class ConcurrencyController:
    """How many trials run at once, while nodes come and go.

    Args:
        plan: of the trials.
        limiter: has `max_concurrent`, which Ray Tune reads before each new trial.
        most: upper limit of trials at once, if the user gave one.
    """

    def __init__(self, plan: TrialPlan, limiter: Any, most: int | None = None) -> None:
        self.plan, self.limiter, self.most = plan, limiter, most
        self._asked, self._asked_at = -1, -math.inf
        self._looked = -math.inf

    def update(self, left: int) -> int | None:
        """Ask for room for the trials that are left and use the room there is; the new number if it changed."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        wanted = min(left, self.most or left)
        if wanted != self._asked or now - self._asked_at >= ASK_SECONDS:
            request_resources_for(self.plan, wanted)
            self._asked, self._asked_at = wanted, now
        try:
            concurrent = capacity(self.plan, self.most).concurrent
        except ConfigError:  # the last node that fits went away; what runs is tried again elsewhere
            return None
        if concurrent == self.limiter.max_concurrent:
            return None
        self.limiter.max_concurrent = concurrent
        return concurrent

    def close(self) -> None:
        if self._asked > 0:
            request_resources_for(self.plan, 0)


class TrialMonitor(tune.Callback):
    """Prints a line for each finished task, and closes the MLflow runs of trials that did not end by themselves.

    Args:
        plans: of the trials.
        trials: how many there will be.
        num_tasks: of the stream.
        concurrent: trials at once.
        room: follows the cluster as it grows and shrinks.
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
        self._short: dict[str, int] = {}  # how often memory ran out since the last finished task
        self._begun: dict[str, float] = {}
        self._longest = 0.0  # seconds of a complete trial
        self._still: dict[str, str] = {}  # run -> the last that was said of a worker which stands still
        self._looked = -math.inf

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._say_who_stands_still(trials)
        concurrent = self.room.update(self._left()) if self.room else None
        if concurrent is not None:
            self.concurrent = concurrent
            say(f"the cluster has room for {concurrent} trials at once now", with_time=True)

    def _say_who_stands_still(self, trials: list[Any]) -> None:
        """Say what workers of a trial have noted of one another (learning/pulse.py)."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for trial in trials:
            plan = self._plan(trial)
            if plan.workers > 1 and trial.status == "RUNNING":
                name = run_name(plan, trial.config)
                said = kv_get(still_note(name))
                if said and said != self._still.get(name):
                    say(f"{self._label(trial)}  {said}", with_time=True)
                self._still[name] = said

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._label(trial)
        self._begun.setdefault(trial.trial_id, time.monotonic())
        self.ended.discard(trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        task, seen_as = int(result.get("task", 0)), self._seen_as(trial)
        if task <= self.seen.get(seen_as, 0):  # reported again after a restart
            return
        self.seen[seen_as] = task
        self._short.pop(trial.trial_id, None)
        if (plan := self._plan(trial)).workers == 1:  # failures count since the last finished task
            trial.max_failures = trial.num_failures + failures_of_process(plan)
        parts = [self._label(trial), f"task {task}/{self.num_tasks}"]
        parts.append(progress_text(result))
        is_reused = task <= int(result.get("reused", 0))
        parts.append("trained by another trial" if is_reused else f"{result.get('seconds', math.nan):.1f} s")
        say("  ".join(parts), with_time=True)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        task = self.seen.get(trial.trial_id, 0)
        self.ended.add(trial.trial_id)
        if task >= self.num_tasks and trial.trial_id in self._begun:
            self._longest = max(self._longest, time.monotonic() - self._begun[trial.trial_id])
            say(
                f"{self._label(trial)}  complete after {format_duration(self._longest)}{self._outlook()}",
                with_time=True,
            )

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune counts every end of a trial's process; the end of its machine is not the trial's failure.

        What would come again is not trained again: the next attempt reads the note of it and is the last.
        """
        error = _error(trial)
        if is_lost_node(error) and trial.max_failures < MOST_LOST_NODES:
            trial.max_failures += 1
        elif is_oom_kill(error):
            say(f"{self._label(trial)}  Ray ended it: memory ran out; it starts again", with_time=True)
            self._short[trial.trial_id] = self._short.get(trial.trial_id, 0) + 1
            if self._short[trial.trial_id] <= MOST_SHORT_OF_MEMORY:
                trial.max_failures += 1
            if is_started_here():
                await_memory(PROCESS, MEMORY_SECONDS)
        elif getattr(_innermost(error), "is_permanent", False):
            trial.max_failures = trial.num_failures
        self._keep_words(trial, error)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended.add(trial.trial_id)
        reason = _reason(trial)
        say(f"{self._label(trial)}  failed: {reason}", with_time=True)
        self._keep_words(trial, _error(trial))
        self._close(trial, "FAILED", {"ctvr.error": reason})

    def _keep_words(self, trial: Any, error: BaseException) -> None:
        """Record what a worker said before it failed: on its run, or on the sweep's where it had not come to one."""
        plan, inner = self._plan(trial), _innermost(error)
        words = getattr(inner, "traceback_and_log", "") or fetch_actor_log(inner)
        if not words:
            return
        name, number = run_name(plan, trial.config), trial.num_failures

        def keep() -> None:
            tracker = Tracker(plan.tracking_uri, Path(plan.root))
            runs = [run.run_id for run in tracker.find_runs(sweep=plan.sweep, tags={"ctvr.trial": name})]
            for run in runs or filter(None, [plan.parent]):
                tracker.log_text(run, f"failures/{'' if runs else f'{name}-'}{number}.txt", words)

        self.records.add(f"why {name} failed", keep)

    def _plan(self, trial: Any) -> TrialPlan:
        return self.plans[trial.config.get("row", "")]

    def _seen_as(self, trial: Any) -> str:
        return str(trial.trial_id)

    def _left(self) -> int:
        """How many trials still want room."""
        return self.trials - len(self.ended)

    def _label(self, trial: Any) -> str:
        if "number" in trial.config:  # of a search, in which every row has as many
            number, many, what = trial.config["number"], self.trials // len(self.plans), trial.config["row"]
        else:
            number = self.numbers.setdefault(trial.trial_id, len(self.numbers) + 1)
            many, what = self.trials, trial.config["run"]["label"]
        return f"trial {number}/{many} {what}".rstrip()

    def _outlook(self) -> str:
        """The time that is left, if no further trial is stopped early."""
        if (left := self._left()) <= 0:
            return ""
        return f"; {left} to go, at most {format_duration(math.ceil(left / self.concurrent) * self._longest)}"

    def _close(self, trial: Any, status: str, tags: dict[str, str]) -> None:
        plan = self._plan(trial)
        self._close_run(plan, run_name(plan, trial.config), status, tags)

    def _close_run(self, plan: TrialPlan, name: str, status: str, tags: dict[str, str]) -> None:
        def close() -> None:
            tracker = Tracker(plan.tracking_uri, Path(plan.root))
            for run in tracker.find_runs(sweep=plan.sweep, tags={"ctvr.trial": name}):
                tracker.set_tags(run.run_id, tags)
                tracker.close(run.run_id, status)

        self.records.add(f"the end of run {name}", close)


class BracketMonitor(TrialMonitor):
    """Watches a search in brackets, whose trials run in segments: each of these is a trial to Tune.

    Args:
        plans, num_tasks, concurrent, room: as of `TrialMonitor`.
        trials: of each row.
        search: says how many segments wait or run.
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

    def _label(self, trial: Any) -> str:
        return self._name(trial.config["row"], trial.config["number"])

    def _name(self, row: str, number: int) -> str:
        many = "" if self.search.halving[row].search.searcher == "grid" else f"/{self.trials}"
        return f"trial {number}{many} {row}".rstrip()

    def _seen_as(self, trial: Any) -> str:
        return self._label(trial)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self.seen.get(self._seen_as(trial), 0) >= self.num_tasks:
            say(f"{self._label(trial)}  complete", with_time=True)

    def stopped(self, row: str, number: int, label: str, task: int) -> None:
        """Others of the bracket did better."""
        say(f"{self._name(row, number)}  stopped after task {task}: others do better", with_time=True)
        plan = self.plans[row]
        self._close_run(plan, f"{plan.sweep}-{label}", "FINISHED", {"ctvr.stopped": f"halving after task {task}"})

    def bracket_ended(self, row: str, bracket: int, brackets: int | None) -> None:
        """Say how long it took, and what is left at most where the number of brackets is known."""
        taken = time.monotonic() - self._started
        left = (
            f"; at most {format_duration(taken / bracket * (brackets - bracket))} to go"
            if brackets and 0 < bracket < brackets
            else ""
        )
        number = f"{bracket}/{brackets}" if brackets else bracket
        say(f"{row} bracket {number} ended after {format_duration(taken)}{left}".lstrip(), with_time=True)


NO_REASON = "no reason was recorded"


def _error(trial: Any) -> BaseException:
    """Return what ended a trial, as this process was told."""
    return error_of(trial) or TrialFailed(NO_REASON)


def _innermost(error: Any) -> BaseException:
    """Below what Ray and Tune wrap around an error."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause
    return error


def _reason(trial: Any) -> str:
    """Why a trial failed, in one line."""
    error = _innermost(_error(trial))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, TrialFailed):
        return lines[0][:400] if lines else NO_REASON
    return f"{type(error).__name__}: {redact(lines[0])[:300]}" if lines else type(error).__name__
