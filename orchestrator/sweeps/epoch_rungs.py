"""Halving rungs after epochs, for early stopping of trials on streams of one task."""

from __future__ import annotations

from collections.abc import Container, Iterable

from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.search_budget import rungs
from ctvr.orchestrator.settings.experiment import Experiment


def epochs_compared(search: SearchConfig, experiment: Experiment, num_tasks: int, space: Container[str]) -> int:
    """Return the number of epochs of a trial if trials can be compared after epochs, otherwise 0.

    Trials with different numbers of epochs cannot be compared.

    Args:
        search: settings of the search.
        experiment: experiment of a trial, except the searched settings.
        num_tasks: number of tasks of the method (`Stream.method_tasks`).
        space: names of the searched settings.
    """
    if num_tasks > 1 or search.scheduler == "none" or "optim.epochs" in space or not experiment.trains_by_gradients:
        return 0
    epochs = experiment.optim.epochs
    return epochs if rungs(search.grace_tasks, search.reduction_factor, epochs) else 0


def describe_rungs(search: SearchConfig, num_tasks: int, epochs: Iterable[int] = ()) -> str:
    """Describe the epochs after which trials are compared, or why trials are not stopped early.

    Returns "" if trials are compared after tasks.

    Args:
        search: settings of the search.
        num_tasks: number of tasks of the stream.
        epochs: number of epochs of a trial of each search; 0 if its trials are compared after tasks.
    """
    if search.scheduler == "none" or rungs(search.grace_tasks, search.reduction_factor, num_tasks):
        return ""
    listed = sorted(set(epochs) - {0})
    if listed and search.depends_on_timing:
        return f", after each of {' or '.join(map(str, listed))} epochs, since the stream has one task"
    if listed:
        after = ", ".join(map(str, rungs(search.grace_tasks, search.reduction_factor, listed[-1])))
        return f", compared after epochs {after} of {' or '.join(map(str, listed))}, since the stream has one task"
    text = f", without early stopping: no rung precedes the last of {num_tasks} tasks"
    if num_tasks == 1:
        text += " or epochs, optim.epochs is searched, or evaluation.every_epoch is false"
    return text
