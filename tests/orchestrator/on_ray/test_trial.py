"""Trials of several workers under Ray Train, without a cluster: devices, backends, failures."""

import pickle
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorDiedError
from ray.train import ControllerError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

from ctvr.orchestrator.errors import ConfigError, NonFiniteLoss
from ctvr.orchestrator.on_ray import featurize, single_worker
from ctvr.orchestrator.on_ray.failures import MOST_SHORT_OF_MEMORY, to_trial_failed
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.on_ray.trial import _backend, _convert_hang, _device, _FailurePolicyCallback, _hang_detector
from tests.refusing import refuses


def wrapped(error: Exception) -> UserExceptionWithTraceback:
    return UserExceptionWithTraceback(error, f"Traceback\n  many lines\n{error}")


def test_a_mistake_of_the_user_ends_the_run_at_once_with_its_own_line():
    callback, mistake = _FailurePolicyCallback(), ConfigError("is wrong", "a")
    with pytest.raises(ControllerError) as raised:
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo")), 1: wrapped(mistake)})
    found = to_trial_failed(pickle.loads(pickle.dumps(raised.value)))
    assert (str(found), found.is_permanent) == (str(mistake), True)


def test_a_lost_worker_is_tried_again():
    _FailurePolicyCallback().after_exception(None, {0: wrapped(RuntimeError("gloo")), 1: ActorDiedError()})


def test_lost_nodes_do_not_count_as_failures():
    callback = _FailurePolicyCallback(1)
    lost = RuntimeError("The actor died because its node has died. Node Id: 5f")  # as Ray's GCS words it
    for _ in range(20):
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo")), 1: wrapped(lost)})
    short = RuntimeError("killed due to the node running low on memory. It was 22.8GB used / 23.5GB limit")
    for _ in range(MOST_SHORT_OF_MEMORY):
        callback.after_exception(None, {0: wrapped(short), 1: wrapped(RuntimeError("gloo"))})
    with pytest.raises(ControllerError):
        callback.after_exception(None, {0: wrapped(short)})
    callback.after_report(None, [{}], None)
    callback.after_exception(None, {0: wrapped(short)})
    for _ in range(3):
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo"))})
        callback.after_report(None, [{}], None)
    callback.after_exception(None, {0: wrapped(RuntimeError("gloo"))})
    with pytest.raises(ControllerError) as raised:
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo"))})
    found = to_trial_failed(pickle.loads(pickle.dumps(raised.value)))
    assert (str(found), found.is_permanent) == ("RuntimeError: gloo", False)


@pytest.mark.slow
def test_a_trial_driver_starts_without_the_science():
    code = (
        "import sys, ctvr.orchestrator.on_ray.tune; "
        "late = ('torch', 'open_clip', 'torchvision', 'mlflow', 'ctvr.orchestrator.learning.run.execute'); "
        "print([m for m in late if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def plan(**more) -> TrialPlan:
    return TrialPlan("s", "/r", "", "uri", None, "/r", **more)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device_of", [_device, single_worker._device])
def test_a_worker_that_was_given_a_gpu_never_takes_the_cpu_in_its_stead(device_of):
    assert device_of(plan()) == torch.device("cpu")
    with refuses("GPU"):
        device_of(plan(gpus_per_worker=1))


@pytest.mark.parametrize(("has_gpu", "place"), [(False, "cpu"), (True, "cuda")])
def test_tower_without_an_assigned_gpu_stays_on_the_cpu(has_gpu, place, monkeypatch):
    towers = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(featurize, "Featurizer", lambda settings, places, device: towers.append(device))
    featurize._Tower({}, None, [], has_gpu, ())  # type: ignore[arg-type]
    assert towers == [torch.device(place)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_tower_that_was_given_a_gpu_never_takes_the_cpu_in_its_stead():
    with refuses("GPU"):
        featurize._Tower({}, None, [], has_gpu=True, named=())  # type: ignore[arg-type]


def test_workers_meet_by_what_their_devices_allow():
    assert _backend(plan(workers=2)).backend == "gloo"
    assert _backend(plan(workers=2, gpus_per_worker=1)).backend == "cpu:gloo,cuda:nccl"  # objects go by gloo
    assert _backend(plan(workers=2, patience=0.5)).timeout_s == 1800
    assert _backend(plan(workers=2)).timeout_s == 1800  # of a step; what rank 0 does alone has another group
    assert _backend(plan(workers=2, patience=0.1)).timeout_s == 360
    assert _backend(plan(workers=2, gpus_per_worker=0.5)).backend == "gloo"  # NCCL needs one GPU per process


def test_failed_collective_names_the_stalled_worker():
    pulse = SimpleNamespace(named=lambda: "", positions=lambda: "worker 0 is in step 2, worker 1 is in step 1")
    timeout = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv")
    told = _convert_hang(timeout, pulse)
    assert str(told).startswith("worker 0 is in step 2, worker 1 is in step 1 (RuntimeError: [gloo")
    assert not told.is_permanent  # the group is started again
    assert _convert_hang(RuntimeError("connection closed by peer"), pulse) is None
    pulse.named = lambda: "worker 1 of 2 is stalled"
    assert str(_convert_hang(RuntimeError("connection closed by peer"), pulse)).startswith("worker 1 of 2 is stalled (")
    assert _convert_hang(NonFiniteLoss("the loss is no number"), pulse) is None


def test_rays_detector_of_nccl_hangs_is_on_for_plans_on_gpus_alone():
    from ray.train.v2._internal.constants import ENABLE_NCCL_HANG_DETECTOR_ENV_VAR as name

    assert _hang_detector(plan(workers=2, gpus_per_worker=1), {}) == {name: "1"}
    assert _hang_detector(plan(workers=2, gpus_per_worker=1), {name: "0"}) == {name: "0"}  # as the user requested
    assert _hang_detector(plan(workers=2), {}) == _hang_detector(plan(gpus_per_worker=1), {}) == {}


def test_workers_whose_driver_has_ended_are_not_started_again():
    lost = RuntimeError("The actor is dead because its owner has died. Owner Id: 35ab")
    with pytest.raises(ControllerError) as error:
        _FailurePolicyCallback().after_exception(None, {0: lost})
    assert str(error.value.controller_failure) == "the trial's driver has ended"
    _FailurePolicyCallback().after_exception(
        None, {0: RuntimeError("The actor died unexpectedly.")}
    )  # that one starts again


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is counted anew on Linux alone")
def test_trial_memory_excludes_earlier_trials_of_the_process():
    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    scraps = [torch.ones(8192) for _ in range(4096)]  # 128 MiB in pieces that the allocator would keep
    before = peak()
    scraps = scraps[-1:]  # lies above all others
    single_worker._release_memory()
    assert before - peak() > 100
