"""Every private name of Ray that we use exists in the installed Ray, and behaves as required."""

import os
import pickle
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from ray import tune
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train.backend import BackendConfig
from ray.tune.execution import tune_controller
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.utils.object_cache import _ObjectCache

from ctvr.orchestrator.on_ray import internals
from ctvr.orchestrator.on_ray.failures import is_oom_kill
from ctvr.orchestrator.on_ray.internals import (
    Trainer,
    dedupe_actor_deaths,
    error_of,
    keep_errors_in_memory,
    keep_processes,
    lease,
    root_cause,
    strip_credentials,
    trials_of,
)

KILLED = (  # as Ray 2.60 words it, shortened
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: 7a) was "
    "7.20GB used / 23.54GB limit (0.305759)\nOOM kill reason: Memory usage 7625936896B exceeded threshold\nSelected to "
    "kill: (Actor(5a): job ID=01, pid=11417, actual memory used=3.61GB, worker ID=17)"
)
REPOSITORY = Path(__file__).resolve().parents[3]


class _Trial:
    def __init__(self, status: str) -> None:
        self.status = status


def test_what_objects_of_ray_keep_is_there():
    from ray._private import state
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

    assert callable(state.state.get_draining_nodes)
    inner = ValueError("mine")
    assert root_cause(UserExceptionWithTraceback(inner, "Traceback")) is inner
    assert trials_of(tune.ResultGrid(SimpleNamespace(trials=[]))) == []


@pytest.mark.parametrize(("status", "expected"), [("PENDING", ["RUNNING"]), ("RUNNING", ["RUNNING"])])
def test_a_process_that_dies_is_one_failure_of_its_new_trial(status, expected):
    dedupe_actor_deaths()
    loop, process, trial, failed = object.__new__(TuneController), MagicMock(), _Trial(status), []
    vars(loop).update(
        _actor_to_trial={process: trial},
        _actor_manager=MagicMock(),
        _actor_stopped=MagicMock(),
        _unstage_trial_with_resources=MagicMock(),
        _pending_trials={trial} if status == "PENDING" else set(),
        _resetting_trials={trial} if status == "PENDING" else set(),
        _paused_trials=set(),
        _fail_fast=False,
        _print_trial_errors=False,
        _set_trial_status=lambda trial, status: setattr(trial, "status", status),
        _process_trial_failure=lambda trial, exception: failed.append(trial.status),
    )
    # Ray's actor manager reports in this order: the process, then its task
    loop._actor_failed(process, RayActorError())
    loop._trial_task_failure(trial, RayActorError())
    assert failed == expected
    assert not loop._resetting_trials


def test_a_process_that_ray_ends_for_its_memory_is_one_that_died():
    dedupe_actor_deaths()
    told: list[Exception] = []
    task = SimpleNamespace(_tracked_actor=MagicMock(), _on_error=lambda actor, error: told.append(error))
    RayActorManager._actor_task_failed(MagicMock(), task, OutOfMemoryError(KILLED))
    assert isinstance(told[0], RayActorError)
    assert is_oom_kill(pickle.loads(pickle.dumps(told[0])))


def test_ray_version_is_bounded_to_the_tested_minor_version():
    text = (REPOSITORY / "pyproject.toml").read_text()
    asked = Requirement(text[text.index('"ray[') + 1 :].partition('"')[0])
    installed = Version(version("ray"))
    assert asked.specifier.contains(installed)
    assert not asked.specifier.contains(f"{installed.major}.{installed.minor + 2}.0")


def test_ray_started_here_binds_to_loopback(monkeypatch):
    from ray._private import ray_constants
    from ray.util import get_node_ip_address

    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    internals.bind_to_loopback(True)
    assert get_node_ip_address() == "127.0.0.1"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    internals.bind_to_loopback(False)
    assert ray_constants.ENABLE_RAY_CLUSTER
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"


def test_tune_passes_no_credentials_to_trials(monkeypatch):
    from ray.tune.execution import class_cache

    handed_on = set(class_cache.ENV_VARS_TO_PROPAGATE)
    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", handed_on | {"AWS_SECRET_ACCESS_KEY"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    given: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(class_cache.ray, "remote", lambda runtime_env: given.update(runtime_env) or (lambda cls: cls))
    class_cache._ActorClassCache().get(object)
    assert given["env_vars"]["AWS_SECRET_ACCESS_KEY"] == "made-up"  # Tune's default
    strip_credentials()
    class_cache._ActorClassCache().get(object)
    assert "AWS_SECRET_ACCESS_KEY" not in given["env_vars"]
    assert given["env_vars"]["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "0.2"


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # Ray compares its own old settings
def test_a_trial_starts_no_process_for_ray_datasets():
    callbacks = Trainer(print, backend_config=BackendConfig())._create_default_callbacks()
    names = {type(callback).__name__ for callback in callbacks}
    assert "DatasetsCallback" not in names
    assert "PlacementGroupCleanerCallback" in names  # without it stopped trials leak their workers


class _Planted:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def test_an_error_is_taken_from_memory_and_its_file_is_not_loaded(tmp_path, monkeypatch):
    for name in ("handle_error", "get_pickled_error"):  # as they were, after the test
        monkeypatch.setattr(Trial, name, getattr(Trial, name))
    told: list[object] = []
    monkeypatch.setattr(Trial, "handle_error", lambda self, exc=None: told.append(exc))
    monkeypatch.setattr(internals, "_errors", {})
    keep_errors_in_memory()
    keep_errors_in_memory()
    (tmp_path / "error.pkl").write_bytes(pickle.dumps(_Planted(tmp_path / "ran")))
    trial = MagicMock(trial_id="a", pickled_error_file=str(tmp_path / "error.pkl"), local_path=str(tmp_path))
    assert Trial.get_pickled_error(trial) is None
    error = RayActorError(error_msg="gone")
    Trial.handle_error(trial, error)
    assert Trial.get_pickled_error(trial) is error_of(trial) is error
    assert told == [error]
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_leases_of_several_drivers_stay_until_each_is_withdrawn_or_ends(two_cpus):
    import ray
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )

    coordinator = get_or_create_autoscaling_coordinator()

    def reserved(name: str) -> float:
        nodes = ray.get(coordinator.get_reserved_resources.remote(name))
        return sum(node.get("CPU", 0.0) for node in nodes.values())

    for name, seconds in (("one", 60.0), ("two", 60.0), ("dead", 0.5)):
        lease(name, [{"CPU": 0.5}], seconds)
    assert [reserved(name) for name in ("one", "two", "dead")] == [0.5, 0.5, 0.5]
    lease("one", [{"CPU": 0.5}] * 2, 60.0)
    assert reserved("one") == 1.0
    lease("two", [], 60.0)
    time.sleep(0.6)
    lease("one", [{"CPU": 0.5}], 60.0)  # a change of any request ends those whose time is over
    assert reserved("one") == 0.5
    assert [reserved(name) for name in ("two", "dead")] == [0.0, 0.0]
    lease("one", [], 60.0)
    lease("unknown", [], 60.0)  # nothing to withdraw


# ------------------------------------------------------------------------------- processes between rungs


def kept_processes(monkeypatch, wanted):
    """Return the cache that Tune creates if a search may need so many processes."""
    monkeypatch.setattr(tune_controller, "_ObjectCache", tune_controller._ObjectCache)
    keep_processes(lambda: wanted[0])
    return tune_controller._ObjectCache(may_keep_one=True)


def test_as_many_processes_are_kept_as_trials_may_follow(monkeypatch):
    wanted = [2]
    cache = kept_processes(monkeypatch, wanted)
    assert [cache.cache_object("place", each) for each in "abc"] == [True, True, False]
    assert list(cache.flush_cached_objects()) == []
    assert cache.pop_cached_object("place") == "a"
    assert cache.num_cached_objects == 1
    cache.cache_object("place", "d")
    wanted[0] = 1
    assert list(cache.flush_cached_objects()) == ["b"]
    assert list(cache.flush_cached_objects(force_all=True)) == ["d"]
    assert cache.num_cached_objects == 0


def test_without_trials_to_come_the_rule_is_tunes(monkeypatch):
    cache = kept_processes(monkeypatch, [0])
    usual = _ObjectCache(may_keep_one=True)
    for each in (cache, usual):
        kept = [each.cache_object("place", name) for name in "ab"]
        each.increase_max("place", 2)
        kept += [each.cache_object("place", name) for name in "cd"]
        each.decrease_max("place", 2)
        assert (kept, list(each.flush_cached_objects())) == ([True, False, True, False], ["a", "c"])
