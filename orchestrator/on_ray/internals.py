"""Ray's private names, each with the reason why it is needed. A test asserts that the installed Ray has all of them.

No other file touches one. pyproject.toml bounds Ray at the newest minor version that the test has seen: whoever
raises the bound runs `pytest tests/orchestrator/on_ray/test_internals.py` first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ray import tune
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.job_config import JobConfig
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def bind_to_loopback(is_local: bool) -> None:
    """Let Ray bind to loopback when it is started next, or to every interface, as a node of a cluster must.

    Without this a sweep on a laptop opens its ports, each of which runs commands, to every network it is in. Ray
    offers no option for it: the setting is its default on the systems after which the variable is named, and
    `ray_constants` has read that variable by the time this is called.
    """
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = not is_local
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = str(int(not is_local))  # in the processes that it starts


class _SafePath(list[str]):
    """Folders that Ray puts first on the path of every worker, to which it adds no others."""

    def extend(self, folders: Iterable[str]) -> None:
        """Leave out the folders that `ray.init` adds: the present one and that of the driver's script."""


def job_config(folders: Iterable[str]) -> JobConfig:
    """Return a configuration of a job whose workers get these folders, and not the driver's present folder.

    With it a file random.py or methods.py there would hide the module of that name in every worker. Ray has no option.
    """
    made = JobConfig()
    made._py_driver_sys_path = _SafePath(folders)
    return made


def kv_put(key: str, text: str) -> None:
    """Write a note that every process of the cluster can read until it ends.

    Ray's key-value store survives the trial driver that writes the note; an actor for it would be one more process.
    """
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key.encode(), text.encode())


def kv_get(key: str) -> str:
    """The note that `kv_put` left, or ""."""
    from ray.experimental import internal_kv

    return (internal_kv._internal_kv_get(key.encode()) or b"").decode()


def strip_credentials() -> None:
    """Stop Tune from handing AWS keys on in the runtime environment of trials: Ray writes it to logs and shows it.

    Processes of a cluster that was started here inherit the keys; the nodes of another one have their own. Tune has
    no option for what it hands on.
    """
    from ray.tune.execution import class_cache

    class_cache.ENV_VARS_TO_PROPAGATE = {
        name for name in class_cache.ENV_VARS_TO_PROPAGATE if not name.startswith("AWS_")
    }


def dedupe_actor_deaths() -> None:
    """Have Tune take the death of a trial's process for one failure of that trial, whatever the process was doing.

    Tune 2.60 does not in two cases, both of which a machine without memory brings about. A process that is handed to
    another trial (`reuse_actors`) and dies before it has begun with it is told twice, and the second time ends the
    trial for good, however many attempts are left; a process that Ray's memory monitor ended raises an error that
    Tune does not know as a death, and ends the search.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.execution.tune_controller import TuneController

    fail_of_trial, fail_of_process = TuneController._trial_task_failure, RayActorManager._actor_task_failed
    if getattr(fail_of_trial, "counts_once", False):
        return

    def of_trial(self: Any, trial: Any, exception: Exception) -> None:
        told_again = trial in self._resetting_trials and isinstance(exception, RayActorError)
        self._resetting_trials.discard(trial)
        if not told_again:  # the other notice of the same death comes at once
            fail_of_trial(self, trial, exception)

    def of_process(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = RayActorError(error_msg=str(exception))
        fail_of_process(self, tracked_actor_task, exception)

    of_trial.counts_once = True  # type: ignore[attr-defined]
    TuneController._trial_task_failure = of_trial  # type: ignore[method-assign]
    RayActorManager._actor_task_failed = of_process  # type: ignore[method-assign]


_errors: dict[str, BaseException] = {}  # trial id -> its last error, in the process that drives the trials


def keep_errors_in_memory() -> None:
    """Have Tune read no error of a trial from a file.

    Tune keeps errors as pickles in the runs folder and loads them at the end of a search: whoever can write there
    would run code in the driver. Errors of this process's trials are in its memory, and others do not matter to it.
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
    """Tune's trials with their status; the public rows do not tell a stopped trial from an interrupted one."""
    return list(results._experiment_analysis.trials)


class Trainer(DataParallelTrainer):
    """Ray Train's trainer without the process that deals out Ray datasets: our workers read the data themselves.

    Ray starts that process for every trial, used or not.
    """

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, DatasetsCallback)]


def root_cause(error: BaseException) -> BaseException:
    """The exception below Ray's wrappers: Train keeps a worker's own in `_base_exc`, Ray a task's in `cause`."""
    for name in ("_base_exc", "cause"):
        inner = getattr(error, name, None)
        if isinstance(inner, BaseException):
            return root_cause(inner)
    return error
