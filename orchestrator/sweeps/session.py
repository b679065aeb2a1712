"""Functions shared by jobs on a cluster: trial plans, resources, interruption and resumption."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctvr.orchestrator.config import Settings, build
from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.errors import ConfigError, Interrupted
from ctvr.orchestrator.execution import ExecutionConfig, absolute
from ctvr.orchestrator.learning.run.factory import check_backbone
from ctvr.orchestrator.on_ray.capacity import choose_gpus, no_gpu_text
from ctvr.orchestrator.on_ray.connection import check_local, cluster
from ctvr.orchestrator.on_ray.memory import worker_bytes
from ctvr.orchestrator.on_ray.plan import Capacity, SearchOutcome, TrialPlan, join_uri
from ctvr.orchestrator.on_ray.plan_places import OPTIONS, require_given
from ctvr.orchestrator.on_ray.plan_types import check_types
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.sweeps.preflight import check_hours
from ctvr.orchestrator.tracking.server import default_uri
from ctvr.orchestrator.tracking.tracker import Tracker

# GPU model -> TFLOP/s in fp32, TF32 and bf16 without sparsity (NVIDIA's data sheets, SXM)
PEAKS = {"A100": (19.5, 156.0, 312.0), "H100": (67.0, 495.0, 989.0), "H200": (67.0, 495.0, 989.0)}
WITHOUT_TF32 = frozenset({"V100", "T4", "P100", "K80", "P4"})  # older models have neither TF32 nor bf16
FEW_PAIRS = 8  # pairs per worker below which a GPU waits for its host
SHARED_PAIRS = 16  # pairs per worker up to which a GPU is idle for most of a step in tf32 and bf16 (docs/gpu.md)
MLFLOW_SECONDS = 120.0  # maximum time for which a finished sweep waits for an unreachable server


@contextmanager
def interruptible(
    what: str, again: str, execution: ExecutionConfig, tracker: Tracker, parents: Sequence[str]
) -> Iterator[None]:
    """Context manager that converts Ctrl-C to `Interrupted`, and marks open runs as killed.

    Args:
        what: kind and name of the interrupted work.
        again: the command that resumes it.
        execution: the runs folder.
        tracker: records of runs.
        parents: run ids of the parent runs whose open runs are marked.

    Raises:
        Interrupted: after Ctrl-C, with the command that resumes.
    """
    try:
        yield
    except KeyboardInterrupt:
        _close_open_runs(tracker, parents)
        raise _interrupted(
            f"{what} is not finished; its finished tasks and mid-task checkpoints are kept", again, execution
        ) from None


@contextmanager
def not_started(what: str, again: str, execution: ExecutionConfig) -> Iterator[None]:
    """Context manager that converts Ctrl-C before a sweep's first trial to `Interrupted`; see `interruptible`."""
    try:
        yield
    except KeyboardInterrupt:
        raise _interrupted(f"{what} is not finished; its plan is kept", again, execution) from None


def _interrupted(fault: str, again: str, execution: ExecutionConfig) -> Interrupted:
    return Interrupted(f"{fault}. Resume with: {again}{runs_option(execution.runs)}")


def _close_open_runs(tracker: Tracker, parents: Sequence[str]) -> None:
    try:
        for parent in parents:
            for run in tracker.find_runs(sweep=parent):
                if run.status == "RUNNING":
                    tracker.close(run.run_id, "KILLED")
            tracker.close(parent, "KILLED")
    except Exception as error:  # a failure here must not hide the command that resumes
        say(f"tracking: some runs of the sweep remain open ({type(error).__name__})")


def flush_outbox(tracker: Tracker) -> int:
    """Send the workers' unsent records to MLflow, with retries while it restarts; return how many remain unsent."""
    until = time.monotonic() + MLFLOW_SECONDS
    while (left := tracker.flush()[1]) and time.monotonic() < until:
        time.sleep(2)
    return left


def warn_unsent(tracker: Tracker) -> None:
    """Send the workers' unsent records to MLflow, or warn about them; workers' own warnings are only in Ray's logs."""
    _, left = tracker.flush()
    if left:
        say(
            f"tracking: {count(left, 'record waits', 'records wait')} because MLflow did not respond. "
            "Send them later: ctvr runs sync"
        )


def close_search(tracker: Tracker, parent: str, outcome: SearchOutcome) -> None:
    """Record the outcome of a search on its parent run."""
    tracker.set_tags(parent, {"ctvr.trials": str(outcome.trials), "ctvr.complete_trials": str(outcome.complete)})
    tracker.close(parent, "FINISHED" if outcome.complete else "FAILED")


# ------------------------------------------------------------------------------------- plans and resources


def trial_plan(
    execution: ExecutionConfig, name: str, experiments: Sequence[Experiment] = (), recorded: TrialPlan | None = None
) -> TrialPlan:
    """Return the folders and resources that the trials of a sweep share.

    Args:
        execution: execution settings.
        name: name of the sweep.
        experiments: experiments of the trials, of which the largest determines the memory of a worker.
        recorded: plan of a resumed sweep, whose storage is used again unless the command has --storage.
    """
    places = execution.places()
    storage = recorded.storage if recorded is not None else str(execution.folder(name))
    return TrialPlan(
        sweep=name,
        root=str(places.root),
        store=places.store,
        tracking_uri=default_uri(execution.runs),
        parent=None,
        storage=join_uri(absolute(execution.ray_storage), name) if execution.ray_storage else storage,
        videos=str(places.videos) if places.videos else None,
        workers=execution.workers,
        cpus_per_worker=execution.cpus_per_worker,
        gpus_per_worker=(execution.gpus_per_trial or 0.0) / execution.workers,
        accelerator_type=execution.accelerator_type,
        memory_per_worker=max((_worker_bytes(each, execution) for each in experiments), default=0),
        reuse=execution.reuse_prefixes,
        patience=execution.worker_timeout_hours,
        max_nodes=execution.max_nodes,
    )


def _worker_bytes(experiment: Experiment, execution: ExecutionConfig) -> int:
    data = experiment.data
    pairs = math.ceil(data.batch_size / execution.workers)
    return worker_bytes(experiment.backbone.name, data.num_frames, pairs, bool(execution.gpus_per_trial))


def check_machine(execution: ExecutionConfig, name: str, experiments: Sequence[Experiment] = ()) -> None:
    """Check that all backbones can be loaded and that a trial fits this machine, before videos are rendered.

    Raises:
        ConfigError: if a backbone cannot be loaded, or a trial needs more resources than a local cluster has.
    """
    for experiment in experiments:
        check_backbone(experiment)
    check_local(trial_plan(execution, name), execution.address, execution.local_cpus)


@contextmanager
def ray_cluster(execution: ExecutionConfig) -> Iterator[ExecutionConfig]:
    """Context manager that connects to Ray and yields `execution` with the number of GPUs of a trial.

    Raises:
        ConfigError: if the cluster lacks the requested GPUs.
    """
    with cluster(execution.address, execution.local_cpus, execution.nodes, trial_plan(execution, "any")):
        gpus = choose_gpus(execution.gpus_per_trial, execution.workers)
        if execution.accelerator_type and not gpus:
            raise ConfigError(no_gpu_text(execution.accelerator_type))
        yield replace(execution, gpus_per_trial=gpus)


_WHERE = ("address", "nodes", "local_cpus", "max_concurrent", "max_nodes")
_GPUS = "gpus_per_trial"  # the option's value, for a sweep that was interrupted before it joined a cluster


def resume_options(execution: ExecutionConfig) -> Settings:
    """Return the options that a resumed sweep takes from the first command unless they are given again."""
    return {name: getattr(execution, name) for name in (*_WHERE, _GPUS)}


@contextmanager
def within_budget(hours: float | None) -> Iterator[None]:
    """Context manager that interrupts its block like Ctrl-C after a number of hours; None means no limit.

    Raises:
        ConfigError: for a number of hours out of range.
    """
    if hours is None:
        yield
        return
    check_hours(hours)
    timer = threading.Timer(hours * 3600, _end_of_budget, [hours])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_of_budget(hours: float) -> None:
    say(f"--budget-hours: the limit of {hours:g} hours has passed; stopping", with_time=True)
    os.kill(os.getpid(), signal.SIGINT)


def restore_execution(execution: ExecutionConfig, plan: TrialPlan, kept: Mapping[str, Any]) -> ExecutionConfig:
    """Return the execution settings of a resumed sweep: its trials' resources, on the current cluster.

    Raises:
        ConfigError: if another user or machine wrote the plan, and it has an address that this command does not repeat.
    """
    given = (execution.address, execution.store, execution.ray_storage, execution.videos)
    require_given(plan.sweep, kept, dict(zip(OPTIONS.values(), given)))
    kept_where = {name: value for name, value in kept.get("where", {}).items() if name in (*_WHERE, _GPUS)}
    file = execution.folder(plan.sweep) / "plan.json"
    check_types(ExecutionConfig, kept_where, file, "where")
    first = build(ExecutionConfig, kept_where, dotted=False)
    where = {name: getattr(first, name) for name in _WHERE if getattr(execution, name) in (None, 1)}
    return replace(
        execution,
        **where,
        store=execution.store or plan.store,
        videos=execution.videos or (Path(plan.videos) if plan.videos else None),
        workers=plan.workers,
        cpus_per_worker=plan.cpus_per_worker,
        gpus_per_trial=plan.gpus_per_worker * plan.workers if plan.parent else first.gpus_per_trial,
        accelerator_type=plan.accelerator_type,
        reuse_prefixes=plan.reuse and execution.reuse_prefixes,
    )


def resources_text(execution: ExecutionConfig, room: Capacity) -> str:
    """Describe the resources of a trial and of the cluster."""
    kind = f" ({execution.accelerator_type})" if execution.accelerator_type else ""
    gpus = f" and {execution.gpus_per_trial:g} GPUs{kind}" if execution.gpus_per_trial else ""
    cpus = execution.workers * execution.cpus_per_worker
    return (
        f"{execution.workers} workers, {cpus:g} CPUs{gpus} for each trial, of {room.cpus:g} CPUs and {room.gpus:g} GPUs"
    )


def precision_lines(execution: ExecutionConfig, precisions: Iterable[str], models: Iterable[str] = ()) -> list[str]:
    """Return lines that warn about GPUs that compute in full float32; empty otherwise.

    Args:
        execution: execution settings, including the GPUs of a trial.
        precisions: precisions of the runs.
        models: Ray's names of the GPU models in the cluster.
    """
    known = [name.split("-")[0] for name in ([execution.accelerator_type] if execution.accelerator_type else models)]
    if not execution.gpus_per_trial or "fp32" not in precisions or (known and set(known) <= WITHOUT_TF32):
        return []
    model = next((name for name in known if name in PEAKS), "A100")
    fp32, tf32, bf16 = PEAKS[model]
    return [
        f"  precision  fp32, without TF32: peak of {'an' if model[0] in 'AH' else 'a'} {model} {fp32:g} TFLOP/s, "
        f"{tf32:g} in tf32 ({tf32 / fp32:.0f} times), {bf16:g} in bf16 ({bf16 / fp32:.0f} times). precision=tf32 or "
        "precision=bf16 is faster and changes the key"
    ]


def sharing_lines(execution: ExecutionConfig, runs: Iterable[tuple[int, str]]) -> list[str]:
    """Return lines with advice on trials that leave a GPU idle, or whose workers share a GPU; empty otherwise.

    Args:
        execution: execution settings, including the workers and GPUs of a trial.
        runs: batch size, in pairs over all workers, and precision of each run.
    """
    workers, gpus = execution.workers, execution.gpus_per_trial or 0.0
    if workers > 1 and 0 < gpus < workers:
        return [
            f"  sharing    {workers} workers of a trial share {gpus:g} GPUs. --gpus-per-trial {workers} gives each "
            "a whole one"
        ]
    few = [pairs for pairs, precision in runs if precision != "fp32" and 0 < pairs <= SHARED_PAIRS]
    if workers > 1 or gpus < 1 or not few:
        return []
    return [
        f"  sharing    data.batch_size={min(few)} probably leaves the GPU idle for most of a step: an H200 was busy "
        "for 7 to 27 % of one with 8 pairs (docs/gpu.md). --gpus-per-trial 0.25 runs four trials on a GPU, each with "
        "a quarter of its memory"
    ]


def batch_lines(execution: ExecutionConfig, batch_sizes: Iterable[int]) -> list[str]:
    """Return lines that warn about fewer than FEW_PAIRS pairs per worker with a GPU; empty otherwise.

    Args:
        execution: execution settings, including the workers and GPUs of a trial.
        batch_sizes: batch sizes of the runs, in pairs over all workers.
    """
    workers, smallest = execution.workers, min(batch_sizes, default=0)
    if workers == 1 or not execution.gpus_per_trial or not 0 < smallest < FEW_PAIRS * workers:
        return []
    return [
        f"  batch      data.batch_size={smallest} is {smallest / workers:g} for each of {workers} workers; a GPU "
        f"waits for its host below {FEW_PAIRS}. data.batch_size={FEW_PAIRS * workers} or fewer workers use it better; "
        "another batch changes the result"
    ]


def describe_concurrency(room: Capacity, most: int) -> str:
    """Describe the number of concurrent trials, and what limits it.

    Args:
        room: resources of the cluster.
        most: number of trials that the search can run at once.
    """
    if most < room.concurrent:
        return f"{most} at once; the cluster can run {room.concurrent}"
    if not room.memory_binds:
        return f"{room.concurrent} at once"
    return (
        f"{room.concurrent} at once, limited by memory at {room.memory_per_worker / 1e9:.1f} GB for a worker; the "
        f"processors can run {room.by_processors} (--max-concurrent overrides this)"
    )
