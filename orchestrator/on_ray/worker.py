"""What one process of a trial does: the loop and what it tells, once for each finished task, to whoever started it.

Nothing of Ray is needed: the search hears of a task by a function that it hands in. This file is loaded by processes
that do not train, too; they start sooner without the science and without torch.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.methods import trust
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import TrialPlan

if TYPE_CHECKING:
    from ctvr.methods.base import Method, Task
    from ctvr.orchestrator.data.batches import StreamData
    from ctvr.orchestrator.learning.commits import Commits, RunState
    from ctvr.orchestrator.learning.distributed import Workers
    from ctvr.orchestrator.learning.experiment import Experiment

Tell = Callable[[dict[str, Any]], None]  # hears a row of metrics for each finished task


@dataclass(frozen=True)
class TrialWork:
    """One run of one trial.

    Attributes:
        plan: what all trials share.
        settings: of this trial, with the plan's; flat and dotted.
        presets: of this trial.
        name: of the run; it is never used for another configuration.
        until: end after this many tasks, to go on another time; none: after the last.
    """

    plan: TrialPlan
    settings: Settings
    presets: tuple[str, ...]
    name: str
    stop_after_task: int | None = None


def run_trial(work: TrialWork, workers: Workers, tell: Tell) -> None:
    """Run the loop in this process, one of `workers`.

    A worker that starts again after a failure goes on from the last commit; the finished tasks are told of again,
    which schedulers ignore and the tracker does not store twice.

    Args:
        work: the trial.
        workers: this process's place among them, and its device.
        tell: called equally often by every worker.

    Raises:
        CtvrError: for a mistake of the user, for data that cannot be read, for numbers that are none.
    """
    from ctvr.orchestrator.learning.resolve import resolve
    from ctvr.orchestrator.learning.run import execute
    from ctvr.orchestrator.redaction import hide_secrets
    from ctvr.orchestrator.streams.load import load_stream

    hide_secrets()
    plan = work.plan
    _check_sources(plan)
    trust(plan.trusted)  # the process that drives the trials has refused what its user did not name
    places = plan.places()
    stream = load_stream(work.settings["stream"], places.root, places.videos)
    experiment = resolve(work.settings, stream.settings, work.presets)
    reports = _Reports(work, experiment, workers, tell)
    on_ready, reuse = reports.ready, plan.reuse
    try:
        result = execute(experiment, places, workers, reports.report, reuse=reuse, on_ready=on_ready, stream=stream)
    except _StopTrial:
        return
    reports.conclude(result.record, result.resumed == len(result.stream.tasks))


def _check_sources(plan: TrialPlan) -> None:
    """Refuse to compute with other code than the sweep was started with, on a node that joined since.

    Raises:
        ConfigError: with this node's name.
    """
    from ctvr.orchestrator.digests import source_digest

    host = platform.node()
    if plan.sources and host != plan.host and (mine := source_digest()) != plan.sources:
        raise ConfigError(
            f"code: {host} has other sources ({mine}) than {plan.host} ({plan.sources}), which started the sweep. Run "
            "`ray up` with the cluster's YAML again, then `ctvr sweep --resume`."
        )


class _StopTrial(Exception):
    """The tasks that were asked for are finished, and committed; every worker hears it after the same report."""


class _Reports:
    """What a worker tells the search (every worker equally often) and MLflow (rank 0 alone)."""

    def __init__(self, work: TrialWork, experiment: Experiment, workers: Workers, tell: Tell) -> None:
        from ctvr.orchestrator.tracking.recorder import Recorder
        from ctvr.orchestrator.tracking.tracker import Tracker

        plan, name = work.plan, work.name
        tags = {**plan.tags, "ctvr.sweep": plan.sweep, "ctvr.trial": name}
        tracker = Tracker(plan.tracking_uri, Path(plan.root))
        self.recorder = Recorder(tracker, experiment, name, plan.parent, tags, plan.keep_model)
        self.workers, self.tell, self.until = workers, tell, work.stop_after_task
        self.reads: Callable[[int], dict[str, str]] = lambda done: {}
        self.reported = 0
        self.reused = 0  # tasks that another trial has trained

    def ready(self, key: str, method: Method, data: StreamData, commits: Commits) -> None:
        num_tasks = len(data.stream.tasks)
        if self.workers.rank == 0:  # whose reports alone reach the search
            self.reads = lambda done: {"reads": ",".join(commits.settings_read(done))} if done == num_tasks else {}
            self.recorder.ready(key, method, data, commits)
        done = self.workers.broadcast(commits.finished(num_tasks))
        self.reused = commits.reused
        if done:
            self._catch_up(commits.record(done))

    def report(self, task: Task, record: RunState, seconds: float) -> None:
        if self.workers.rank == 0:
            self.recorder.report(task, record, seconds)
        self._catch_up(record)

    def conclude(self, record: RunState, was_finished: bool) -> None:
        if self.workers.rank == 0 and was_finished:  # by an earlier process that may not have told MLflow
            self.recorder.complete(record)

    def _catch_up(self, record: RunState) -> None:
        """One report for each finished task that has none yet, and the end of the run where it was asked for."""
        last = record.done if self.until is None else min(record.done, self.until)
        for done in range(self.reported, last):
            row = {name: value for name, value in record.metrics[done].items() if name.startswith("stream/")}
            about = {"task": done + 1, "seconds": record.seconds[done], "reused": self.reused}
            self.tell({**about, **self.reads(done + 1), **row})  # the rest is in MLflow
        self.reported = max(self.reported, last)
        if self.until is not None and last >= self.until:
            raise _StopTrial
