"""Capacity of a Ray cluster in concurrent trials, resources of a trial, and requests to the autoscaler."""

from __future__ import annotations

import logging
import math
import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import ray

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.internals import lease
from ctvr.orchestrator.on_ray.memory import memory_of, trials_in_memory
from ctvr.orchestrator.on_ray.nodes import alive_nodes, is_started_here
from ctvr.orchestrator.on_ray.plan import Capacity, TrialPlan

log = logging.getLogger(__name__)

DRIVER_CPU = 0.1  # CPUs of the driver of several workers, which only waits; a single worker runs without a driver
EVERY_TRIAL = 10**6  # more trials than any number of nodes can hold
ACCELERATOR = "accelerator_type:"  # prefix of the resource by which a node names the model of its GPUs
LEASE_SECONDS = 180.0  # as in Ray Train; sweeps renew the lease every minute
REQUESTER = f"ctvr-{secrets.token_hex(8)}"  # identifies this driver, since several may share a cluster


def capacity(plan: TrialPlan, max_concurrent: int | None = None) -> Capacity:
    """Return the resources of the connected cluster and how many trials fit it at once.

    Args:
        plan: plan of the trials.
        max_concurrent: the user's limit; if None, a rough memory estimate also limits the number.

    Raises:
        ConfigError: if not even one trial can ever be scheduled.
    """
    have = ray.cluster_resources()
    cpus, gpus = have.get("CPU", 0.0), have.get("GPU", 0.0)
    nodes = [node.get("Resources", {}) for node in alive_nodes()]
    fits = count_fitting_trials(plan, nodes)
    if max_concurrent is not None:
        return Capacity(cpus, gpus, min(fits, max_concurrent), models=gpu_models(nodes))
    able = memory_of([node for node in nodes if _slots(plan, node, 1)])
    in_memory = trials_in_memory(plan.memory_per_worker, plan.workers, able)
    room = fits if in_memory is None else min(fits, in_memory)
    return Capacity(cpus, gpus, room, fits, plan.memory_per_worker, gpu_models(nodes))


def final_concurrency(plan: TrialPlan, room: Capacity, max_concurrent: int | None = None) -> int:
    """Return how many trials fit at once when an autoscaling cluster has grown to `plan.max_nodes` nodes.

    If `plan.max_nodes` is None or memory limits the number, return `room.concurrent`.

    Args:
        plan: plan of the trials.
        room: capacity of the present cluster.
        max_concurrent: the user's limit, if any.
    """
    if plan.max_nodes is None or room.memory_binds:
        return room.concurrent
    nodes = [node.get("Resources", {}) for node in alive_nodes()]
    return max(room.concurrent, cap_to_max_nodes(plan, max_concurrent or EVERY_TRIAL, nodes, plan.max_nodes)[0])


def process_resources(plan: TrialPlan) -> dict[str, float]:
    """Return the resources that Tune reserves for a trial's process, which is its single worker or its driver."""
    return worker_resources(plan) if plan.workers == 1 else {"CPU": DRIVER_CPU}


def gpu_models(nodes: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Return the GPU models of the nodes by Ray's names, the most frequent first."""
    found = [name.removeprefix(ACCELERATOR) for node in nodes for name in node if name.startswith(ACCELERATOR)]
    return tuple(model for model, _ in Counter(found).most_common())


def worker_resources(plan: TrialPlan) -> dict[str, float]:
    """Return the resources that Ray reserves for each worker of a trial."""
    resources = {"CPU": plan.cpus_per_worker}
    if plan.gpus_per_worker:
        resources["GPU"] = plan.gpus_per_worker
        if plan.accelerator_type:
            resources[ACCELERATOR + plan.accelerator_type] = 0.001  # the amount of Ray's option `accelerator_type`
    return resources


def _driver_cpu(plan: TrialPlan) -> float:
    return DRIVER_CPU if plan.workers > 1 else 0.0


def request_resources_for(plan: TrialPlan, trials: int, running: int = 0) -> None:
    """Lease resources for `trials` trials from the cluster's autoscaler. No-op for a cluster on this machine.

    The lease ends after `LEASE_SECONDS` unless it is renewed. 0 trials withdraw the lease, so that idle nodes may be
    released. The lease never needs more nodes than `plan.max_nodes`.

    Args:
        plan: plan of the trials.
        trials: number of trials that run or wait.
        running: number of trials that run; Ray Train itself leases resources for trials with several workers.
    """
    if is_started_here():
        return
    workers = trials * plan.workers
    if trials and plan.max_nodes is not None:
        nodes = [node.get("Resources", {}) for node in alive_nodes()]
        trials, workers = cap_to_max_nodes(plan, trials, nodes, plan.max_nodes)
    drivers = trials if plan.workers > 1 else 0
    if plan.workers > 1:
        workers = max(0, workers - running * plan.workers)
    bundles = [worker_resources(plan)] * workers + [process_resources(plan)] * drivers
    try:
        lease(REQUESTER, bundles, LEASE_SECONDS)
    except Exception as error:  # a change of Ray's internal interface must not end a sweep
        log.warning("the autoscaler request failed: %s", error)


def ask_for_nodes(plan: TrialPlan, count: int) -> None:
    """Request from the autoscaler as many nodes as the cluster lacks to have `count` nodes."""
    request_resources_for(replace(plan, max_nodes=count), EVERY_TRIAL)


def cap_to_max_nodes(plan: TrialPlan, trials: int, nodes: Sequence[Mapping[str, float]], most: int) -> tuple[int, int]:
    """Return (trials, workers): the numbers that can be requested without exceeding `most` nodes.

    Args:
        plan: plan of the trials.
        trials: trials that need resources.
        nodes: resources of the existing nodes. New nodes are assumed to equal the smallest node that holds a worker.
            If no node holds a worker, one worker per new node is requested.
        most: maximum number of nodes, including nodes that cannot hold a worker.
    """
    able = [node for node in nodes if _slots(plan, node, 1)]
    places = most - (len(nodes) - len(able))
    if places < 1:
        return 0, 0
    if not able:  # each worker needs at most one node
        workers = min(places, trials * plan.workers)
        return max(1, workers // plan.workers), workers
    smallest = min(able, key=lambda node: _slots(plan, node, 1))
    try:
        trials = min(trials, count_fitting_trials(plan, [smallest] * places))
    except ConfigError:  # reported by `capacity`
        return 0, 0
    return trials, trials * plan.workers


def choose_gpus(asked: float | None, workers: int) -> float:
    """Return the GPUs of a trial: the user's number, otherwise one per worker if the connected cluster has enough.

    Args:
        asked: value of --gpus-per-trial; None if it was not given.
        workers: workers per trial.

    Raises:
        ConfigError: if the user asked for GPUs that torch cannot use; otherwise workers would fail much later.
    """
    if asked == 0 or (asked is None and ray.cluster_resources().get("GPU", 0.0) < workers):
        return 0.0
    share = (asked or workers) / workers
    if ray.cluster_resources().get("GPU", 0.0) < min(1.0, share) or _sees_cuda(share):
        return asked or float(workers)  # `capacity` reports a lack of GPUs
    if asked is None:
        why = _why_no_cuda(share)
        log.warning("the cluster has GPUs, but torch cannot use them, so trials run on CPUs: %s (docs/install.md)", why)
        return 0.0
    raise ConfigError(
        f"--gpus-per-trial: torch cannot use the cluster's GPUs: {_why_no_cuda(share)} (got {asked:g}). Set "
        "CTVR_TORCH_BACKEND=auto for the nodes (docs/install.md) and run `ray up`, or use --gpus-per-trial 0."
    )


def _sees_cuda(gpus: float) -> bool:
    """Return whether torch finds a CUDA device in a process to which Ray assigns `gpus` GPUs."""

    def ask() -> bool:
        import torch

        return torch.cuda.is_available()

    return bool(ray.get(ray.remote(num_cpus=0, num_gpus=min(1.0, gpus))(ask).remote()))


def _why_no_cuda(gpus: float) -> str:
    """Return a text with the versions of torch and of the NVIDIA driver on a node with `gpus` free GPUs."""

    def ask() -> str:
        import re
        from pathlib import Path

        import torch

        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        try:
            about = Path("/proc/driver/nvidia/version").read_text()
            driver = "the driver is " + (re.findall(r"Module\s+(?:for \S+\s+)?([\d.]+)", about) or ["unreadable"])[0]
        except OSError:
            driver = "there is no NVIDIA driver"
        return f"{torch.__version__} {built}, and {driver}"

    return str(ray.get(ray.remote(num_cpus=0, num_gpus=min(1.0, gpus))(ask).remote()))


def count_fitting_trials(plan: TrialPlan, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many trials fit at once, independent of the nodes on which Ray places their drivers.

    Ray places drivers and workers one by one. If drivers held the last CPUs, their workers would never start. So every
    node is counted as if it held the drivers of all trials.

    Args:
        plan: workers and resources of one trial.
        nodes: resources (CPU, GPU) of each node.

    Raises:
        ConfigError: if no trial fits; the message names the missing resource.
    """
    cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
    need = plan.workers * plan.cpus_per_worker + _driver_cpu(plan)
    if cpus + 1e-9 < need:
        parts = f"{plan.workers} workers x {plan.cpus_per_worker:g} + {DRIVER_CPU} for its driver"
        raise ConfigError(
            f"a trial needs {need:g} CPUs{f' ({parts})' if plan.workers > 1 else ''}, but the cluster has {cpus:g}",
            remedy="Lower --workers or --cpus-per-worker.",
        )
    wanted = plan.workers * plan.gpus_per_worker
    if gpus + 1e-9 < wanted:
        raise ConfigError(
            f"a trial needs {wanted:g} GPUs, but the cluster has {gpus:g}. Lower --gpus-per-trial or --workers."
        )

    if wanted and plan.accelerator_type and not any(ACCELERATOR + plan.accelerator_type in node for node in nodes):
        raise ConfigError(
            f"--accelerator-type: no node has a {plan.accelerator_type}. The cluster has: "
            f"{', '.join(gpu_models(nodes)) or 'no model that Ray detects'}. Choose one of them, or omit the option."
        )

    def is_too_many(trials: int) -> bool:
        slots = sum(_slots(plan, node, trials) for node in nodes)
        return (trials - 1) * need >= cpus or slots < trials * plan.workers

    fits = bisect_left(range(1, math.ceil(cpus / need) + 1), True, key=is_too_many)
    if not fits:
        slots = sum(_slots(plan, node, 1) for node in nodes)
        raise ConfigError(
            f"a trial needs {plan.workers} workers of {plan.cpus_per_worker:g} CPUs and {plan.gpus_per_worker:g} GPUs, "
            f"but the cluster's nodes hold {slots}. Lower --workers, --cpus-per-worker or --gpus-per-trial."
        )
    return fits


def no_gpu_text(accelerator: str) -> str:
    """Return the error message for --accelerator-type on a cluster without GPUs."""
    return (
        f"--accelerator-type {accelerator}: the cluster has no GPU for a trial. Omit it, or let the sweep wait for "
        "GPUs (--gpus-per-trial 1 --nodes N)."
    )


def _slots(plan: TrialPlan, node: Mapping[str, float], drivers: int) -> int:
    """Return the number of workers that fit a node together with `drivers` trial drivers."""
    slots = math.floor((node.get("CPU", 0.0) - drivers * _driver_cpu(plan)) / plan.cpus_per_worker + 1e-9)
    if plan.gpus_per_worker:
        if plan.accelerator_type and ACCELERATOR + plan.accelerator_type not in node:
            return 0
        slots = min(slots, _gpu_slots(node.get("GPU", 0.0), plan.gpus_per_worker))
    return max(0, slots)


def _gpu_slots(gpus: float, share: float) -> int:
    """Return the number of workers that a node's GPUs hold; a share below 1 must fit on one GPU."""
    if share < 1:
        return math.floor(gpus + 1e-9) * math.floor(1 / share + 1e-9)
    return math.floor(gpus / share + 1e-9)
