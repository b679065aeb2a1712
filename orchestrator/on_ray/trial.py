"""Ray Train workers run the continual task loop. Ray executes; the loop and its commits know nothing of it.

Only workers import the science: the trial driver and Train's controller load this file too and start
sooner without it, and without torch.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, UserCallback, WorkerGroupError
from ray.train.backend import BackendConfig

from orchestrator.config import Settings
from orchestrator.errors import ConfigError, CtvrError, TrialFailed
from orchestrator.on_ray.internals import Trainer, cause_of
from orchestrator.on_ray.nodes import is_started_here
from orchestrator.on_ray.plan import TrialPlan
from orchestrator.redaction import redact

if TYPE_CHECKING:
    import torch

    from methods.base import Method, Task
    from orchestrator.data.batches import StreamData
    from orchestrator.learning.commits import Commits, Record
    from orchestrator.learning.experiment import Experiment
    from orchestrator.learning.workers import Workers

NODE_DIED = "its node has died"  # in what Ray says of an actor; there is no class of error for it
# To start a group of workers, each as long as RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S allows: machines of a cluster
# come and go, this one does not
ATTEMPTS_OF_A_CLUSTER, ATTEMPTS_HERE = 20, 2


# ----------------------------------------------------------------------------------------------- a worker


def train_worker(config: dict[str, Any]) -> None:
    """Runs in every Ray Train worker: the loop, reporting once for each finished task.

    A worker that starts again after a failure goes on from the last commit; the finished tasks are
    reported again, which schedulers ignore and the tracker does not store twice.
    """
    from orchestrator.learning.resolve import resolve
    from orchestrator.learning.run import execute
    from orchestrator.learning.workers import Workers
    from orchestrator.redaction import hide_secrets
    from orchestrator.streams.load import load_stream

    hide_secrets()
    plan: TrialPlan = config["plan"]
    _check_sources(plan)
    places = plan.places()
    stream = load_stream(config["settings"]["stream"], places.root, places.videos)
    experiment = resolve(config["settings"], stream.settings, config["presets"])
    context = ray.train.get_context()
    workers = Workers(context.get_world_rank(), context.get_world_size(), _device(plan))
    reports = _Reports(plan, experiment, config["name"], workers, config.get("until"))
    on_ready, reuse = reports.ready, plan.reuse
    try:
        result = execute(experiment, places, workers, reports.report, reuse=reuse, on_ready=on_ready, stream=stream)
    except _Enough:
        return
    reports.conclude(result.record, result.resumed == len(result.stream.tasks))


def _device(plan: TrialPlan) -> torch.device:
    """Where a worker computes; what the plan gave it, and never a CPU in a GPU's stead."""
    if not plan.gpus_per_worker:
        import torch

        return torch.device("cpu")
    from ray.train.torch import get_device

    from orchestrator.data.device import require_gpu

    require_gpu()
    return get_device()


def _check_sources(plan: TrialPlan) -> None:
    """Refuse to compute with other code than the sweep was started with, on a node that joined since.

    Raises:
        ConfigError: with this node's name.
    """
    from orchestrator.digests import source_digest

    host = platform.node()
    if plan.sources and host != plan.host and (mine := source_digest()) != plan.sources:
        raise ConfigError(
            f"code: {host} has other sources ({mine}) than {plan.host} ({plan.sources}), which started the sweep. Run "
            "`ray up` with the cluster's YAML again, then `ctvr sweep --resume`."
        )


class _Enough(Exception):
    """The tasks that were asked for are finished, and committed; every worker hears it after the same report."""


class _Reports:
    """What a worker tells Ray (every worker equally often) and MLflow (rank 0 alone).

    `until` is the task after which the run ends, to go on another time; none: the last.
    """

    def __init__(
        self, plan: TrialPlan, experiment: Experiment, name: str, workers: Workers, until: int | None = None
    ) -> None:
        from orchestrator.tracking.recorder import Recorder
        from orchestrator.tracking.tracker import Tracker

        tags = {**plan.tags, "ctvr.sweep": plan.sweep, "ctvr.trial": name}
        tracker = Tracker(plan.tracking_uri, Path(plan.root))
        self.recorder = Recorder(tracker, experiment, name, plan.parent, tags, plan.keep_model)
        self.workers, self.until = workers, until
        self.reads: Callable[[int], dict[str, str]] = lambda done: {}
        self.reported = 0
        self.reused = 0  # tasks that another trial has trained

    def ready(self, key: str, method: Method, data: StreamData, commits: Commits) -> None:
        num_tasks = len(data.stream.tasks)
        if self.workers.rank == 0:  # whose reports alone reach the search
            self.reads = lambda done: {"reads": ",".join(commits.reads(done))} if done == num_tasks else {}
            self.recorder.ready(key, method, data, commits)
        done = self.workers.agree(commits.finished(num_tasks))
        self.reused = commits.reused
        if done:
            self._catch_up(commits.record(done))

    def report(self, task: Task, record: Record, seconds: float) -> None:
        if self.workers.rank == 0:
            self.recorder.report(task, record, seconds)
        self._catch_up(record)

    def conclude(self, record: Record, was_finished: bool) -> None:
        if self.workers.rank == 0 and was_finished:  # by an earlier process that may not have told MLflow
            self.recorder.complete(record)

    def _catch_up(self, record: Record) -> None:
        """One report for each finished task that has none yet, and the end of the run where it was asked for."""
        last = record.done if self.until is None else min(record.done, self.until)
        for done in range(self.reported, last):
            row = {name: value for name, value in record.metrics[done].items() if name.startswith("stream/")}
            about = {"task": done + 1, "seconds": record.seconds[done], "reused": self.reused}
            ray.train.report({**about, **self.reads(done + 1), **row})  # the rest is in MLflow
        self.reported = max(self.reported, last)
        if self.until is not None and last >= self.until:
            raise _Enough


# ----------------------------------------------------------------------------------------------- a trial


def _backend(plan: TrialPlan) -> BackendConfig:
    """How the workers of a trial find each other.

    A single one needs nobody: its trial starts without torch, and no port is opened on every interface.
    """
    if plan.workers == 1:
        return BackendConfig()
    from ray.train.torch import TorchConfig

    # NCCL wants a GPU for each process. Asked of the plan: the driver of a trial may see no GPU itself. What lies on
    # the CPU (objects, galleries) goes by gloo. Rank 0 may decode a whole stream while the others wait for it
    has_own = plan.gpus_per_worker >= 1
    return TorchConfig(backend="cpu:gloo,cuda:nccl" if has_own else "gloo", timeout_s=round(3600 * plan.patience))


class _EndOnMistake(UserCallback):
    """Ends a run at once on an error that would come again, and on too many others since the last finished task.

    Train itself would try as often after a mistake as after a lost node, and would count both for the whole run. Lost
    nodes are not counted: on machines that come and go a long trial loses many.

    The same where the trial's driver has ended, stopped by the scheduler or lost: workers die with it, and a
    controller that starts others in the moment before its own end leaves their placement group to nobody.
    """

    def __init__(self, max_failures: int = 3) -> None:
        self.max_failures, self.failures = max_failures, 0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.failures = 0

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            if "owner has died" in f"{error} {cause_of(error)}":
                raise ControllerError(TrialFailed("the trial's driver has ended"))
            if is_final(cause_of(error)):
                raise ControllerError(TrialFailed(_line(cause_of(error)), is_final=True))
        if any(is_lost_node(error) for error in worker_exceptions.values()):
            return
        self.failures += 1
        if self.failures > self.max_failures:
            raise ControllerError(explain(WorkerGroupError("", worker_exceptions)))


def run_trial(
    settings: Settings,
    plan: TrialPlan,
    name: str,
    callbacks: list[Any],
    presets: tuple[str, ...] | None = None,
    until: int | None = None,
) -> None:
    """Run one trial as a Ray Train run, in the trial driver.

    Args:
        settings: of this trial alone, flat and dotted; they override `plan.settings`.
        plan: what all trials share.
        name: of the run; Ray resumes by it, so it is never used for another configuration.
        callbacks: of Ray Train, for example Tune's report callback.
        presets: of this trial alone, instead of `plan.presets`.
        until: end after this many tasks, to go on another time.

    Raises:
        TrialFailed: if the run failed more often than `plan.max_failures`, or for a mistake of the user.
    """
    full = {**plan.settings, **settings, "workers": plan.workers}
    resources: dict[str, float] = {"CPU": plan.cpus_per_worker}
    if plan.gpus_per_worker:
        resources["GPU"] = plan.gpus_per_worker
    chosen = plan.presets if presets is None else presets
    attempts = ATTEMPTS_HERE if is_started_here() else ATTEMPTS_OF_A_CLUSTER
    trainer = Trainer(
        train_worker,
        train_loop_config={"settings": full, "plan": plan, "name": name, "presets": chosen, "until": until},
        backend_config=_backend(plan),
        scaling_config=ScalingConfig(
            num_workers=plan.workers, use_gpu=plan.gpus_per_worker > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=name,
            storage_path=plan.storage,
            callbacks=[*callbacks, _EndOnMistake(plan.max_failures)],  # type: ignore[list-item]
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=attempts),  # type: ignore[call-arg]
        ),
    )
    try:
        trainer.fit()
    except (WorkerGroupError, ControllerError) as error:
        raise explain(error) from None


def is_lost_node(error: BaseException) -> bool:
    """Whether an actor died with its node, which a machine that was taken away does to all of them."""
    return any(getattr(each, "preempted", False) or NODE_DIED in str(each) for each in (error, cause_of(error)))


# What torch says, as a plain RuntimeError, of a fault of the program: tensors of two devices or types, and an operator
# that has no kernel which gives the same numbers twice
_FAULTS = ("on the same device", "same dtype", "expected scalar type", "does not have a deterministic implementation")


def is_final(error: BaseException) -> bool:
    """Whether an error of a worker would come again: a mistake in settings, data or code, or a loss without number."""
    if isinstance(error, CtvrError):
        return error.is_final
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _FAULTS):
        return True
    return isinstance(error, (ValueError, TypeError, AttributeError, NotImplementedError))


def explain(error: Exception) -> TrialFailed:
    """The reason of a failed Train run in one line: of all workers' errors the one that is no consequence."""
    if isinstance(error, ControllerError):
        cause = error.controller_failure
        return cause if isinstance(cause, TrialFailed) else TrialFailed(_line(cause))
    causes = [cause_of(each) for each in getattr(error, "worker_failures", {}).values()] or [error]
    first = next((cause for cause in causes if is_final(cause)), None)
    lost = next((cause for cause in causes if "ActorDied" in type(cause).__name__), None)
    return TrialFailed(_line(first or lost or causes[0]), is_final=first is not None)


def _line(error: BaseException) -> str:
    """An error in one line; its type is left out where the message was written for the user."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = redact(lines[0] if lines else "")[:400]
    if isinstance(error, CtvrError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
