"""Ray Train workers run the continual task loop. Ray executes; the loop and its commits know nothing of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from methods.base import Method, Task
from orchestrator.checkpoint import Commits, Record
from orchestrator.config import Settings
from orchestrator.data import StreamData
from orchestrator.loop import Workers
from orchestrator.recorder import Recorder
from orchestrator.run import Places, execute, resolve
from orchestrator.streams import load_stream
from orchestrator.tracking import Tracker

START_TIMEOUT_SECONDS = "300"  # a legitimate start took 40 s and more on a loaded machine
POLL_SECONDS = "0.2"  # how often the controller looks for reports; its default of 2.0 s throttles short tasks


@dataclass(frozen=True)
class TrialPlan:
    """Everything a trial needs besides its own settings. Plain data: Ray pickles it."""

    sweep: str
    root: str  # the runs folder, the same on every node
    store: str
    tracking_uri: str
    parent: str | None  # MLflow run id of the sweep
    storage: str  # where Ray keeps its own state of the trials
    settings: Settings = field(default_factory=dict)  # what all trials share, as the user gave it
    presets: tuple[str, ...] = ()
    videos: str | None = None
    workers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    max_failures: int = 3
    keep_model: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    def places(self) -> Places:
        return Places(Path(self.root), self.store, Path(self.videos) if self.videos else None)


def train_worker(config: dict[str, Any]) -> None:
    """Runs in every Ray Train worker: the loop, reporting once for each finished task.

    A worker that starts again after a failure goes on from the last commit; the finished tasks are
    reported again, which schedulers ignore and the tracker does not store twice.
    """
    plan: TrialPlan = config["plan"]
    context = ray.train.get_context()
    places = plan.places()
    stream = load_stream(config["settings"]["stream"], places.root, places.videos)
    experiment = resolve(config["settings"], stream.settings, plan.presets)
    rank = context.get_world_rank()
    device = ray.train.torch.get_device() if torch.cuda.is_available() else torch.device("cpu")
    workers = Workers(rank, context.get_world_size(), device)
    recorder = Recorder(
        Tracker(plan.tracking_uri, Path(plan.root)),
        experiment,
        config["name"],
        plan.parent,
        {**plan.tags, "ctvr.sweep": plan.sweep, "ctvr.trial": config["name"]},
        plan.keep_model,
    )
    reported = 0

    def catch_up(record: Record) -> None:
        """One report for each finished task that has none yet; every worker reports equally often."""
        nonlocal reported
        for done in range(reported, record.done):
            ray.train.report({"task": done + 1, "seconds": record.seconds[done], **_scalars(record.metrics[done])})
        reported = record.done

    def report(task: Task, record: Record, seconds: float) -> None:
        if rank == 0:
            recorder.report(task, record, seconds)
        catch_up(record)

    def ready(key: str, method: Method, data: StreamData, commits: Commits) -> None:
        if rank == 0:
            recorder.ready(key, method, data, commits)
        done = workers.agree(commits.finished(len(data.stream.tasks)))
        if done:
            catch_up(commits.record(done))

    result = execute(experiment, places, workers, report, on_ready=ready)
    if rank == 0 and result.resumed == len(result.stream.tasks):  # everything had been finished before
        recorder.complete(result.record)


def _scalars(metrics: dict[str, float]) -> dict[str, float]:
    """What Tune needs to see; the per-task details are in MLflow."""
    return {name: value for name, value in metrics.items() if name.startswith("stream/")}


def fit(settings: Settings, plan: TrialPlan, name: str, callbacks: list[Any]) -> None:
    """Run one trial as a Ray Train run, in the trial driver.

    Args:
        settings: of this trial alone, flat and dotted; they override `plan.settings`.
        plan: what all trials share.
        name: of the run; Ray resumes by it, so it is never used for another configuration.
        callbacks: of Ray Train, for example Tune's report callback.

    Raises:
        RuntimeError: if the run failed more often than `plan.max_failures`.
    """
    full = {**plan.settings, **settings, "workers": plan.workers}
    has_whole_gpus = torch.cuda.is_available() and plan.gpus_per_worker >= 1
    resources: dict[str, float] = {"CPU": plan.cpus_per_worker}
    if plan.gpus_per_worker:
        resources["GPU"] = plan.gpus_per_worker
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"settings": full, "plan": plan, "name": name},
        torch_config=TorchConfig(backend="nccl" if has_whole_gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=plan.workers, use_gpu=plan.gpus_per_worker > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=name,
            storage_path=plan.storage,
            callbacks=callbacks,
            failure_config=FailureConfig(max_failures=plan.max_failures, controller_failure_limit=2),
        ),
    )
    trainer.fit()


def worker_environment() -> dict[str, str]:
    """Environment of every Ray process of a sweep. No credentials: Ray shows these in its dashboard."""
    return {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": os.environ.get("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", POLL_SECONDS),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": os.environ.get(
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", START_TIMEOUT_SECONDS
        ),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
