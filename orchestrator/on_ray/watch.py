"""Monitoring of running trials: stalled trials are reported and restarted, and a search is ended in order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import ray

from ctvr.orchestrator.console import format_duration, say
from ctvr.orchestrator.learning.training.pulse import ProgressWatch
from ctvr.orchestrator.on_ray.internals import kv_get
from ctvr.orchestrator.on_ray.interruption import OrderlyStop
from ctvr.orchestrator.on_ray.plan import TrialPlan, progress_note, run_name, still_note

LOOK_SECONDS = 10.0  # interval at which the progress of trials is checked


class TrialWatch:
    """Progress of the running trials of a search.

    Args:
        session: id of the driver (`TrialPlan.session`).
        plan_of: returns a trial's plan.
        label_of: returns a trial's name for messages.
    """

    def __init__(self, session: str, plan_of: Callable[[Any], TrialPlan], label_of: Callable[[Any], str]) -> None:
        self.plan_of, self.label_of = plan_of, label_of
        self.stop = OrderlyStop(session)
        self.killed: set[str] = set()  # ids of trials whose process was killed because it had stalled
        self._progress: dict[str, ProgressWatch] = {}  # id of a running trial -> its progress
        self._still: dict[str, str] = {}  # name of a run -> last message about its stalled worker
        self._looked = -math.inf

    def look(self, trials: Iterable[Any]) -> None:
        """Report trials that stall or resume, restart stalled trials of one worker, and end the search if requested."""
        self.stop.install()
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS and not self.stop.is_requested:
            return
        running = [trial for trial in trials if trial.status == "RUNNING"]
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._progress = {each.trial_id: self._progress.get(each.trial_id, ProgressWatch(now)) for each in running}
            for trial in running:
                self._look_at(trial, now)
        if self.stop.is_requested:
            names = {run_name(self.plan_of(trial), trial.config): trial.trial_id for trial in running}
            known = {name: self._progress.get(trial_id) for name, trial_id in names.items()}
            self.stop.look({name: each is not None and each.can_pause for name, each in known.items()})

    def _look_at(self, trial: Any, now: float) -> None:
        plan, watch = self.plan_of(trial), self._progress[trial.trial_id]
        name = run_name(plan, trial.config)
        news, taken = watch.look(kv_get(progress_note(plan.session, name)), now), format_duration(now - watch.since)
        if self.stop.is_requested:  # a trial that has stored its state does not make progress
            return
        if news == "stalled" and (watch.text or plan.workers == 1):  # a group of workers may wait for machines
            say(f"{self.label_of(trial)}  stalled: no progress for {taken} ({watch.place})", with_time=True)
        elif news == "resumed":
            say(f"{self.label_of(trial)}  has resumed ({watch.place})", with_time=True)
        if plan.workers > 1:  # the workers themselves find the stalled worker and end their run
            said = kv_get(still_note(name))
            if said and said != self._still.get(name):
                say(f"{self.label_of(trial)}  {said}", with_time=True)
            self._still[name] = said
        elif watch.is_named and now - watch.since > 3600 * plan.patience:
            self._restart(trial, taken)

    def _restart(self, trial: Any, taken: str) -> None:
        """Kill a trial's process; Tune starts a new process, which resumes from the last commit or checkpoint."""
        actor = trial.temporary_state.ray_actor
        if actor is None:
            return
        say(f"{self.label_of(trial)}  restarting its process after {taken} without progress", with_time=True)
        self.killed.add(trial.trial_id)
        self._progress.pop(trial.trial_id)
        ray.kill(actor)
