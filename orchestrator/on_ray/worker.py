"""Worker process of a trial, which runs the training loop and reports each finished task.

It does not depend on Ray, because the caller passes the function that receives the reports. Training code and torch are
imported inside functions, because processes that do not train also load this file.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.methods import trust
from ctvr.orchestrator.addresses import is_address, name_addresses
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import TrialPlan

if TYPE_CHECKING:
    from ctvr.methods.base import Method, Task
    from ctvr.orchestrator.data.batches import StreamData
    from ctvr.orchestrator.learning.record.commits import Commits
    from ctvr.orchestrator.learning.record.run_state import RunState
    from ctvr.orchestrator.learning.training.distributed import Workers
    from ctvr.orchestrator.learning.training.interruption import Interruption
    from ctvr.orchestrator.settings.experiment import Experiment

Tell = Callable[[dict[str, Any]], None]  # receives the metrics after each finished task or epoch


@dataclass(frozen=True)
class TrialWork:
    """One run of a trial: the plan and everything that distinguishes this run from other runs of the plan.

    Attributes:
        plan: shared by all trials.
        settings: settings of this trial and of the plan; flat and dotted.
        presets: presets of this trial.
        name: name of the run; never reused for another configuration.
        stop_after_task: number of tasks after which the run ends, so that it can be continued later; None: no limit.
        stop_after_epoch: number of epochs after which it ends, on a stream of one task; None: no limit.
    """

    plan: TrialPlan
    settings: Settings
    presets: tuple[str, ...]
    name: str
    stop_after_task: int | None = None
    stop_after_epoch: int | None = None


def run_trial(work: TrialWork, workers: Workers, tell: Tell, interruption: Interruption) -> None:
    """Run the training loop in this process, which is one of `workers`.

    A worker that restarts after a failure continues from the last commit or mid-task checkpoint. It reports the
    finished tasks again; schedulers ignore the repetition, and the tracker does not store it twice.

    Args:
        work: the trial.
        workers: rank and device of this process, and the number of processes.
        tell: receives the reports; every worker calls it equally often.
        interruption: requests to store the state of the task in training.

    Raises:
        Interrupted: if a request ended it after an epoch or task.
        CtvrError: for wrong settings, unreadable data or non-finite losses.
    """
    from ctvr.orchestrator.learning.run.execute import execute
    from ctvr.orchestrator.learning.training.epoch_state import EpochReports
    from ctvr.orchestrator.redaction import hide_secrets
    from ctvr.orchestrator.settings.resolve import resolve
    from ctvr.orchestrator.streams.load import load_stream

    hide_secrets()
    plan = work.plan
    _check_sources(plan)
    trust(plan.trusted)  # classes and addresses that the driver's user trusts
    name_addresses(name for name in plan.trusted if is_address(name))
    places = plan.places()
    stream = load_stream(work.settings["stream"], places.root, places.videos)
    experiment = resolve(work.settings, stream.settings, work.presets)
    reports = _Reports(work, experiment, workers, tell)
    try:
        result = execute(
            experiment,
            places,
            workers,
            reports.report,
            reuse=plan.reuse,
            on_ready=reports.ready,
            stream=stream,
            epochs=EpochReports(reports.after_epoch if plan.epochs else None, work.stop_after_epoch, interruption),
        )
    except _StopTrial:
        return
    reports.conclude(result.record, result.resumed == len(result.stream.tasks))


def _check_sources(plan: TrialPlan) -> None:
    """Check that this node, which may have joined later, has the source code of the driver's host.

    Raises:
        ConfigError: if the source code differs; the message names both hosts.
    """
    from ctvr.orchestrator.digests import source_digest

    host = platform.node()
    if plan.sources and host != plan.host and (mine := source_digest()) != plan.sources:
        raise ConfigError(
            f"code: {host} runs different source code ({mine}) than {plan.host} ({plan.sources}), which started the "
            "sweep. Run `ray up` with the cluster's YAML again, then `ctvr sweep --resume`."
        )


class _StopTrial(Exception):
    """Ends a run after the requested tasks or epochs; every worker raises it after the same report."""


class _Reports:
    """Reports of a worker to the search (equally often on every worker) and to MLflow (rank 0 only)."""

    def __init__(self, work: TrialWork, experiment: Experiment, workers: Workers, tell: Tell) -> None:
        from ctvr.orchestrator.tracking.recorder import Recorder
        from ctvr.orchestrator.tracking.tracker import Tracker

        plan, name = work.plan, work.name
        tags = {**plan.tags, "ctvr.sweep": plan.sweep, "ctvr.trial": name}
        tracker = Tracker(plan.tracking_uri, Path(plan.root))
        self.recorder = Recorder(tracker, experiment, name, plan.parent, tags, plan.keep_model)
        self.workers, self.tell, self.until = workers, tell, work.stop_after_task
        self.epochs, self.until_epoch, self.reported_epochs = plan.epochs, work.stop_after_epoch, 0
        self.reads: Callable[[int], dict[str, str]] = lambda done: {}
        self.reported = 0
        self.reused = 0  # tasks that another trial trained

    def ready(self, key: str, method: Method, data: StreamData, commits: Commits) -> None:
        num_tasks = len(data.stream.tasks)
        if self.workers.rank == 0:  # only the reports of rank 0 reach the search
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

    def after_epoch(self, record: RunState) -> None:
        if self.workers.rank == 0:
            self.recorder.log_training(record)
        self._catch_up_epochs(record, len(record.training))

    def conclude(self, record: RunState, was_finished: bool) -> None:
        if self.workers.rank == 0 and was_finished:  # the process that finished the run may not have updated MLflow
            self.recorder.complete(record)

    def _catch_up(self, record: RunState) -> None:
        """Report each finished task that was not reported yet; end the run after the requested task."""
        if self.epochs and record.done:
            self._catch_up_epochs(record, min(len(record.training), self.epochs - 1))  # the task reports the last epoch
        last = record.done if self.until is None else min(record.done, self.until)
        for done in range(self.reported, last):
            row = {name: value for name, value in record.metrics[done].items() if name.startswith("stream/")}
            about = {"task": done + 1, "seconds": record.seconds[done], "reused": self.reused}
            about |= {"epoch": self.epochs} if self.epochs else {}
            self.tell({**about, **self.reads(done + 1), **row})  # MLflow has the other metrics
        self.reported = max(self.reported, last)
        if self.until is not None and last >= self.until:
            raise _StopTrial

    def _catch_up_epochs(self, record: RunState, done: int) -> None:
        """Report each of the first `done` epochs that was not reported yet; end the run after the requested epoch."""
        last = min(done, self.epochs - 1, self.until_epoch or done)
        for epoch in range(self.reported_epochs, last):
            found = {name: value for name, value in record.training[epoch].items() if name.startswith("epoch/")}
            row = {name.replace("epoch", "stream", 1): value for name, value in found.items()}
            self.tell({"epoch": epoch + 1, "reused": self.reused, **row})
        self.reported_epochs = max(self.reported_epochs, last)
        if last == self.until_epoch:
            raise _StopTrial
