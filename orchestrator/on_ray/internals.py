"""All uses of Ray's private API, each with its reason. A test asserts that the installed Ray has the used functions.

No other file uses private API of Ray. pyproject.toml limits Ray to the newest minor version with which the test passed.
Before you raise the limit, run `pytest tests/orchestrator/on_ray/test_internals.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.job_config import JobConfig
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.utils.object_cache import _ObjectCache

WITHDRAW_SECONDS = 10.0  # maximum wait until a withdrawn lease is confirmed


def bind_to_loopback(is_local: bool) -> None:
    """Bind the next Ray instance to loopback if `is_local`, otherwise to every interface, as a cluster's node must.

    Without this call, a sweep on a laptop would open Ray's ports, which execute commands, to all networks of the
    laptop. Ray lacks an option for this. It binds to loopback on Windows and macOS unless the environment variable is
    set, and `ray_constants` has read that variable before this call.
    """
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = not is_local
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = str(int(not is_local))  # for the processes that Ray starts


class _SafePath(list[str]):
    """Fixed list of folders that Ray puts first on the path of every worker."""

    def extend(self, folders: Iterable[str]) -> None:
        """Ignore the folders that `ray.init` adds: the current folder and the folder of the driver's script."""


def job_config(folders: Iterable[str]) -> JobConfig:
    """Return a job configuration that puts these folders on the path of workers, without the driver's current folder.

    A file random.py or methods.py in the current folder would shadow the module of that name in every worker. Ray lacks
    an option for this.
    """
    made = JobConfig()
    made._py_driver_sys_path = _SafePath(folders)
    return made


def kv_put(key: str, text: str) -> None:
    """Store a string in the cluster, readable by every process while the cluster runs.

    Ray's key-value store outlives the trial driver that writes the text, and does not need an extra actor process.
    """
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key.encode(), text.encode())


def kv_get(key: str) -> str:
    """Return the text that `kv_put` stored, or ""."""
    from ray.experimental import internal_kv

    return (internal_kv._internal_kv_get(key.encode()) or b"").decode()


def is_draining() -> bool:
    """Return whether Ray drains the node of this process, for example because the cloud preempts the machine.

    Ray Train has `get_preemption_info` for its workers; for other processes Ray lacks a public function.
    """
    from ray._private import state

    return ray.get_runtime_context().get_node_id() in state.state.get_draining_nodes()


def lease(requester: str, bundles: list[dict[str, float]], seconds: float) -> None:
    """Register a request for resources with Ray's coordinator for `seconds`; an empty list of bundles withdraws it.

    Ray's autoscaler keeps one request. Its coordinator is a detached actor that Ray Data and Ray Train start. It
    replaces that request every 20 s by the sum of the registered requests, so other requests are lost. A
    lease expires by itself if the driver dies.

    Args:
        requester: identifies the driver.
        bundles: resources of each worker or driver.
        seconds: time until the lease expires.
    """
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )

    coordinator = get_or_create_autoscaling_coordinator()
    if bundles:
        coordinator.request_resources.remote(requester_id=requester, resources=bundles, expire_after_s=seconds)
        return
    ray.get(coordinator.cancel_request.remote(requester), timeout=WITHDRAW_SECONDS)  # before the driver disconnects


def strip_credentials() -> None:
    """Stop Tune from passing AWS keys in the runtime environment of trials, which Ray logs and displays.

    Processes of a cluster that was started here inherit the keys; nodes of other clusters have their own keys. Tune
    lacks an option for this.
    """
    from ray.tune.execution import class_cache

    class_cache.ENV_VARS_TO_PROPAGATE = {
        name for name in class_cache.ENV_VARS_TO_PROPAGATE if not name.startswith("AWS_")
    }


def dedupe_actor_deaths() -> None:
    """Make Tune count each death of a trial's process as exactly one failure of that trial.

    Tune 2.60 counts otherwise in two cases, both caused by lack of memory. If a process is reused for another trial
    (`reuse_actors`) and dies before that trial starts, Tune counts the death twice, and the second count ends the
    trial regardless of remaining attempts. If Ray's memory monitor kills a process, Tune does not recognize the error
    as a death, and ends the search.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.execution.tune_controller import TuneController

    fail_of_trial, fail_of_process = TuneController._trial_task_failure, RayActorManager._actor_task_failed
    if getattr(fail_of_trial, "counts_once", False):
        return

    def of_trial(self: Any, trial: Any, exception: Exception) -> None:
        told_again = trial in self._resetting_trials and isinstance(exception, RayActorError)
        self._resetting_trials.discard(trial)
        if not told_again:  # a second report of the same death follows immediately
            fail_of_trial(self, trial, exception)

    def of_process(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = RayActorError(error_msg=str(exception))
        fail_of_process(self, tracked_actor_task, exception)

    of_trial.counts_once = True  # type: ignore[attr-defined]
    TuneController._trial_task_failure = of_trial  # type: ignore[method-assign]
    RayActorManager._actor_task_failed = of_process  # type: ignore[method-assign]


class _KeptProcesses(_ObjectCache):
    """Tune's cache of idle processes, which keeps as many processes as later trials may need.

    Args:
        wanted: returns the number of idle processes to keep.
        may_keep_one: passed to Tune's cache.
    """

    def __init__(self, wanted: Callable[[], int], may_keep_one: bool = True) -> None:
        super().__init__(may_keep_one=may_keep_one)
        self._wanted = wanted

    def cache_object(self, key: Any, obj: Any) -> bool:
        if len(self._cached_objects[key]) >= self._wanted():
            return super().cache_object(key, obj)
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        wanted = self._wanted()
        if force_all or wanted <= 0:
            yield from super().flush_cached_objects(force_all)
            return
        for key, kept in self._cached_objects.items():
            while len(kept) > max(wanted, self._max_num_objects[key]):
                self._num_cached_objects -= 1
                yield kept.pop(0)


def keep_processes(wanted: Callable[[], int]) -> None:
    """Make the next Tune run keep processes of ended trials (`reuse_actors`) while `wanted()` trials may follow.

    Tune 2.60 keeps a process for every trial that waits for one, and a single process if no trial waits. Between two
    rungs no trial waits, because the next segments are known only when other trials have reached the rung. So all
    processes except one would end, and new processes would spend many seconds on the import of torch.
    """
    from ray.tune.execution import tune_controller

    tune_controller._ObjectCache = partial(_KeptProcesses, wanted)  # type: ignore[misc,assignment]


_errors: dict[str, BaseException] = {}  # trial id -> its last error; filled in the process that runs Tune


def keep_errors_in_memory() -> None:
    """Stop Tune from reading errors of trials from files.

    Tune stores errors as pickles in the runs folder and loads them at the end of a search, so a user who can write
    there could run code in the driver. The errors of this driver's trials are kept in memory instead.
    """
    from ray.tune.experiment import Trial

    handle = Trial.handle_error
    if getattr(handle, "keeps_errors", False):
        return

    def handle_error(self: Any, exc: Any = None) -> None:
        if isinstance(exc, BaseException):
            _errors[self.trial_id] = exc
        handle(self, exc)

    handle_error.keeps_errors = True  # type: ignore[attr-defined]
    Trial.handle_error = handle_error  # type: ignore[method-assign]
    Trial.get_pickled_error = error_of  # type: ignore[assignment,method-assign]


def error_of(trial: Any) -> Any:
    """Return the last error of a trial, or None."""
    return _errors.get(trial.trial_id)


def trials_of(results: tune.ResultGrid) -> list[Any]:
    """Return Tune's trials with their status; public results do not distinguish stopped from interrupted trials."""
    return list(results._experiment_analysis.trials)


class Trainer(DataParallelTrainer):
    """Ray Train's trainer without the process that distributes Ray datasets, because our workers read their own data.

    Ray would start that process for every trial, even if it is not used.
    """

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, DatasetsCallback)]


def root_cause(error: BaseException) -> BaseException:
    """Return the original exception: Ray Train wraps a worker's error as `_base_exc`, Ray a task's error as `cause`."""
    for name in ("_base_exc", "cause"):
        inner = getattr(error, name, None)
        if isinstance(inner, BaseException):
            return root_cause(inner)
    return error
