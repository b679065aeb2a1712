"""Execution of trials with several workers, each trial as one Ray Train run.

The training loop and its commits do not depend on Ray. Only workers import the training code. The trial driver and Ray
Train's controller, which also load this file, start faster without the training code and torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, UserCallback, WorkerGroupError
from ray.train.backend import BackendConfig

from ctvr.orchestrator.errors import Interrupted, TrialFailed
from ctvr.orchestrator.on_ray.capacity import worker_resources
from ctvr.orchestrator.on_ray.failures import (
    MOST_SHORT_OF_MEMORY,
    attach_traceback,
    is_lost_node,
    is_oom_kill,
    is_permanent,
    one_line,
    to_trial_failed,
)
from ctvr.orchestrator.on_ray.gpu_sharing import limit_memory
from ctvr.orchestrator.on_ray.internals import Trainer, kv_put, root_cause
from ctvr.orchestrator.on_ray.interruption import await_end, interruption_of
from ctvr.orchestrator.on_ray.nodes import is_started_here
from ctvr.orchestrator.on_ray.plan import TrialPlan, progress_note, still_note
from ctvr.orchestrator.on_ray.worker import TrialWork, run_trial
from ctvr.orchestrator.redaction import redact_error

if TYPE_CHECKING:
    import torch

    from ctvr.orchestrator.learning.training.pulse import Pulse

# Number of attempts to start a group of workers; each takes at most RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S. Nodes of a
# cluster may join and leave during the attempts
ATTEMPTS_OF_A_CLUSTER, ATTEMPTS_HERE = 20, 2
DETECTOR = "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR"
STEP_HOURS = 0.5  # maximum hours of a collective operation within a training step


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Run one worker of a Ray Train run, and report once after each finished task.

    Args:
        config: {"work": TrialWork}.
    """
    from ctvr.orchestrator.learning.training.distributed import Workers, patient_group
    from ctvr.orchestrator.learning.training.pulse import report_progress, start_heartbeats

    work: TrialWork = config["work"]
    context = ray.train.get_context()
    rank, size, note = context.get_world_rank(), context.get_world_size(), still_note(work.name)
    patient = patient_group(work.plan.patience)
    pulse = start_heartbeats(rank, size, patient, partial(kv_put, note))
    # If a node of a worker is taken away, Ray Train informs all workers, and restarts them after the node's deadline
    interruption = interruption_of(work.plan, lambda: ray.train.get_preemption_info() is not None)
    send = partial(kv_put, progress_note(work.plan.session, work.name)) if rank == 0 else lambda text: None
    try:
        with report_progress(send, lambda: interruption.can_pause):
            run_trial(work, Workers(rank, size, _device(work.plan), patient), ray.train.report, interruption)
    except Interrupted:
        await_end(work.plan, work.name, rank)
    except Exception as error:
        attach_traceback(error)
        redact_error(error)  # Ray writes it to its logs
        if hang := _convert_hang(error, pulse):
            raise hang from error
        raise
    finally:
        pulse.close()


def _convert_hang(error: Exception, pulse: Pulse) -> TrialFailed | None:
    """Convert a collective operation's error to an error that names the stalled worker; return None for other errors.

    After a timeout without a known stalled worker, the message contains the position of every worker.
    """
    if not isinstance(error, RuntimeError) or is_permanent(error):
        return None
    said = pulse.named() or (pulse.positions() if "timed out" in str(error).lower() else "")
    return (
        TrialFailed(f"{said} ({one_line(error)})", traceback_and_log=getattr(error, "traceback_and_log", ""))
        if said
        else None
    )


def _device(plan: TrialPlan) -> torch.device:
    """Return a worker's device: the CPU, or the GPU of this process if the plan has GPUs.

    Raises:
        CtvrError: if torch cannot use the assigned GPU; the CPU never replaces it.
    """
    if not plan.gpus_per_worker:
        import torch

        return torch.device("cpu")
    from ray.train.torch import get_device

    from ctvr.orchestrator.data.device import require_gpu

    require_gpu()
    limit_memory(plan.gpus_per_worker)
    return get_device()


def _backend(plan: TrialPlan) -> BackendConfig:
    """Return the torch backend through which the workers of a trial communicate."""
    from ray.train.torch import TorchConfig

    # NCCL needs one GPU per process. The plan determines the backend, because the driver of a trial may not have a GPU.
    # Data on the CPU (objects, galleries) uses gloo. A separate process group waits for work that only rank 0 does
    backend = "cpu:gloo,cuda:nccl" if plan.gpus_per_worker >= 1 else "gloo"
    return TorchConfig(backend=backend, timeout_s=round(3600 * min(plan.patience, STEP_HOURS)))


def _hang_detector(plan: TrialPlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that enables Ray Train's detector of hanging NCCL collectives; a value of the user is kept.

    Ray Train reads it when a run starts. The detector writes its findings to Ray Train's log and below the run's
    folder; the time limit of the collective ends the run. {} if the run does not use NCCL.
    """
    return {DETECTOR: environment.get(DETECTOR, "1")} if plan.gpus_per_worker >= 1 and plan.workers > 1 else {}


class _FailurePolicyCallback(UserCallback):
    """Ends a run at once on a permanent error, and after too many other errors since the last finished task.

    Ray Train itself would retry after permanent errors and lost nodes alike, and would count both over the whole run.
    Lost nodes do not count, because a long trial on preemptible machines loses many. Out-of-memory kills caused by
    other processes have a separate limit, `MOST_SHORT_OF_MEMORY`.

    It also ends the run if the trial's driver has ended, because the scheduler stopped it or its node was lost. Workers
    die with the driver; a controller that started new workers just before its own end would leak their placement group.

    Args:
        max_failures: allowed failures since the last finished task.
    """

    def __init__(self, max_failures: int = 3) -> None:
        self.max_failures, self.failures, self.short = max_failures, 0, 0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.failures = self.short = 0

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            if "owner has died" in f"{error} {root_cause(error)}":
                raise ControllerError(TrialFailed("the trial's driver has ended"))
            if is_permanent(root_cause(error)):
                raise ControllerError(to_trial_failed(WorkerGroupError("", worker_exceptions)))
        if any(is_lost_node(error) for error in worker_exceptions.values()):
            return
        if any(is_oom_kill(error) for error in worker_exceptions.values()):
            self.short += 1
        else:
            self.failures += 1
        if self.short > MOST_SHORT_OF_MEMORY or self.failures > self.max_failures:
            raise ControllerError(to_trial_failed(WorkerGroupError("", worker_exceptions)))


def run_distributed(work: TrialWork, callbacks: list[Any]) -> None:
    """Run one trial as a Ray Train run, in the trial driver.

    Args:
        work: the trial; Ray resumes it by its name.
        callbacks: callbacks of Ray Train, for example Tune's report callback.

    Raises:
        TrialFailed: if the run failed more often than `plan.max_failures`, or with a permanent error.
    """
    plan = work.plan
    os.environ.update(_hang_detector(plan, os.environ))
    attempts = ATTEMPTS_HERE if is_started_here() else ATTEMPTS_OF_A_CLUSTER
    trainer = Trainer(
        train_loop_per_worker,
        train_loop_config={"work": work},
        backend_config=_backend(plan),
        scaling_config=ScalingConfig(
            num_workers=plan.workers, use_gpu=plan.gpus_per_worker > 0, resources_per_worker=worker_resources(plan)
        ),
        run_config=RunConfig(
            name=work.name,
            storage_path=plan.storage,
            callbacks=[*callbacks, _FailurePolicyCallback(plan.max_failures)],  # type: ignore[list-item]
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=attempts),  # type: ignore[call-arg]
        ),
    )
    try:
        trainer.fit()
    except (WorkerGroupError, ControllerError) as error:
        raise to_trial_failed(error) from None
