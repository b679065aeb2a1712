"""How many trials fit a Ray cluster at once, what each of them takes, and how the cluster is asked to grow."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

import ray

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.memory import memory_of, trials_in_memory
from ctvr.orchestrator.on_ray.plan import Capacity, TrialPlan

log = logging.getLogger(__name__)

DRIVER_CPU = 0.1  # the driver of a trial of several workers only waits for them; one worker needs none
EVERY_TRIAL = 10**6  # more than any number of nodes has room for


def capacity(plan: TrialPlan, max_concurrent: int | None = None) -> Capacity:
    """How many trials fit the connected cluster at once.

    Args:
        max_concurrent: as the user said; memory, whose sum is rough, bounds them only where nothing was said.

    Raises:
        ConfigError: if not even one trial can ever be scheduled.
    """
    have = ray.cluster_resources()
    cpus, gpus = have.get("CPU", 0.0), have.get("GPU", 0.0)
    nodes = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
    fits = count_fitting_trials(plan, nodes)
    if max_concurrent is not None:
        return Capacity(cpus, gpus, min(fits, max_concurrent))
    able = memory_of([node for node in nodes if _slots(plan, node, 1)])
    in_memory = trials_in_memory(plan.memory_per_worker, plan.workers, able)
    return Capacity(cpus, gpus, fits if in_memory is None else min(fits, in_memory), fits, plan.memory_per_worker)


def process_resources(plan: TrialPlan) -> dict[str, float]:
    """What Tune reserves for the process of a trial: the only worker's share, or the driver's of several."""
    return _worker_resources(plan) if plan.workers == 1 else {"CPU": DRIVER_CPU}


def _worker_resources(plan: TrialPlan) -> dict[str, float]:
    return {"CPU": plan.cpus_per_worker, **({"GPU": plan.gpus_per_worker} if plan.gpus_per_worker else {})}


def _driver_cpu(plan: TrialPlan) -> float:
    return DRIVER_CPU if plan.workers > 1 else 0.0


def request_resources_for(plan: TrialPlan, trials: int) -> None:
    """Ask the cluster's autoscaler for room for so many trials; a fixed cluster takes no notice.

    The request stands until the next one; 0 trials take it back, and idle machines may go. It never asks for more
    machines than `plan.max_nodes`.
    """
    from ray.autoscaler.sdk import request_resources

    workers = trials * plan.workers
    if trials and plan.max_nodes is not None:
        nodes = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
        trials, workers = cap_to_max_nodes(plan, trials, nodes, plan.max_nodes)
    bundles = [_worker_resources(plan)] * workers + [process_resources(plan)] * (trials if plan.workers > 1 else 0)
    try:
        request_resources(bundles=bundles)
    except Exception as error:  # an interface that Ray calls experimental must not end a sweep
        log.warning("the cluster was not asked to grow: %s", error)


def ask_for_nodes(plan: TrialPlan, count: int) -> None:
    """Ask for as many machines as make `count` nodes of the cluster."""
    request_resources_for(replace(plan, max_nodes=count), EVERY_TRIAL)


def cap_to_max_nodes(plan: TrialPlan, trials: int, nodes: Sequence[Mapping[str, float]], most: int) -> tuple[int, int]:
    """How many of the trials, and of their workers, a request may name so that it is met by `most` nodes.

    Args:
        plan: of the trials.
        trials: that want room.
        nodes: resources of those that are there. New ones are taken to be like the smallest that holds a worker; before
            there is one, one worker is asked for.
        most: nodes in all, those on which no worker fits included.
    """
    able = [node for node in nodes if _slots(plan, node, 1)]
    places = most - (len(nodes) - len(able))
    if not able or places < 1:
        return (1, 1) if places > 0 else (0, 0)
    smallest = min(able, key=lambda node: _slots(plan, node, 1))
    try:
        trials = min(trials, count_fitting_trials(plan, [smallest] * places))
    except ConfigError:  # said where the cluster's capacity is asked for
        return 0, 0
    return trials, trials * plan.workers


def choose_gpus(asked: float | None, workers: int) -> float:
    """GPUs of a trial: as many as the user asked for, else one for each worker if the connected cluster has them.

    Raises:
        ConfigError: if they were asked for and torch cannot use them; workers would fail on it much later.
    """
    if asked == 0 or (asked is None and ray.cluster_resources().get("GPU", 0.0) < workers):
        return 0.0
    share = (asked or workers) / workers
    if ray.cluster_resources().get("GPU", 0.0) < min(1.0, share) or _sees_cuda(share):
        return asked or float(workers)  # too few of them is said by `capacity`
    if asked is None:
        log.warning("the cluster has GPUs, but its torch cannot use them: trials run on CPUs")
        return 0.0
    raise ConfigError(
        f"--gpus-per-trial: the cluster's GPUs are of no use to its torch: {_why_no_cuda(share)}. Set "
        "CTVR_TORCH_BACKEND=auto for the nodes (docs/cluster.md) and run `ray up`, or write --gpus-per-trial 0."
    )


def _sees_cuda(gpus: float) -> bool:
    """Whether torch finds a device in a process that Ray gave `gpus` GPUs; asked before workers fail on it."""

    def ask() -> bool:
        import torch

        return torch.cuda.is_available()

    return bool(ray.get(ray.remote(num_cpus=0, num_gpus=min(1.0, gpus))(ask).remote()))


def _why_no_cuda(gpus: float) -> str:
    """The build of torch and the driver, of a process that Ray gave `gpus` GPUs."""

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
    """Trials that fit at once, wherever Ray places their drivers.

    Drivers and workers are placed one by one: drivers that hold the last CPUs while no worker fits would
    wait for ever. So every node is counted as if it held the drivers of all trials.

    Args:
        plan: workers and resources of one trial.
        nodes: resources (CPU, GPU) of each node.

    Raises:
        ConfigError: if none fits; the message says what is missing.
    """
    cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
    need = plan.workers * plan.cpus_per_worker + _driver_cpu(plan)
    if cpus + 1e-9 < need:
        parts = f"{plan.workers} workers x {plan.cpus_per_worker:g} + {DRIVER_CPU} for its driver"
        raise ConfigError(
            f"a trial needs {need:g} CPUs{f' ({parts})' if plan.workers > 1 else ''}, the cluster has {cpus:g}. "
            "Lower --workers or --cpus-per-worker."
        )
    wanted = plan.workers * plan.gpus_per_worker
    if gpus + 1e-9 < wanted:
        raise ConfigError(
            f"a trial needs {wanted:g} GPUs, the cluster has {gpus:g}. Lower --gpus-per-trial or --workers."
        )

    def is_too_many(trials: int) -> bool:
        slots = sum(_slots(plan, node, trials) for node in nodes)
        return (trials - 1) * need >= cpus or slots < trials * plan.workers

    fits = bisect_left(range(1, math.ceil(cpus / need) + 1), True, key=is_too_many)
    if not fits:
        slots = sum(_slots(plan, node, 1) for node in nodes)
        raise ConfigError(
            f"a trial needs places for {plan.workers} workers of {plan.cpus_per_worker:g} CPUs and "
            f"{plan.gpus_per_worker:g} GPUs, the cluster's nodes have {slots}. Lower --workers, --cpus-per-worker or "
            "--gpus-per-trial."
        )
    return fits


def _slots(plan: TrialPlan, node: Mapping[str, float], drivers: int) -> int:
    """Workers that fit a node beside `drivers` trial drivers."""
    slots = math.floor((node.get("CPU", 0.0) - drivers * _driver_cpu(plan)) / plan.cpus_per_worker + 1e-9)
    if plan.gpus_per_worker:
        slots = min(slots, _gpu_slots(node.get("GPU", 0.0), plan.gpus_per_worker))
    return max(0, slots)


def _gpu_slots(gpus: float, share: float) -> int:
    """Workers that a node's GPUs hold; a share of less than one GPU never spans two."""
    if share < 1:
        return math.floor(gpus + 1e-9) * math.floor(1 / share + 1e-9)
    return math.floor(gpus / share + 1e-9)
