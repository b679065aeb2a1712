"""Which failures of a trial are tried again, and what is said of them: without a cluster."""

from __future__ import annotations

import pickle
import platform
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray.train
import torch
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.backend import BackendConfig
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerGroupStartupTimeoutError

from orchestrator.errors import ConfigError, Diverged, OutOfMemory, TrialFailed
from orchestrator.learning.commits import Record
from orchestrator.learning.workers import Workers
from orchestrator.on_ray.plan import TrialPlan
from orchestrator.on_ray.trial import (
    _backend,
    _check_sources,
    _device,
    _EndOnMistake,
    _Enough,
    _Reports,
    explain,
    is_final,
)


def test_a_stretch_ends_after_its_task_and_the_next_one_goes_on_with_the_reports(monkeypatch, small_stream):
    """With a store of commits that already holds more, or less, than the stretch."""
    sent: list[dict] = []
    monkeypatch.setattr(ray.train, "report", sent.append)
    recorder = SimpleNamespace(ready=lambda *what: None, report=lambda *what: None)
    record = Record(done=1, metrics=[{"stream/t2v/r1": 9.0 * task, "task_01/x": 0.0} for task in (1, 2, 3)])
    record.seconds = [1.0, 2.0, 3.0]

    def reports(until: int | None) -> _Reports:
        made = _Reports.__new__(_Reports)
        made.workers, made.until, made.recorder = Workers(), until, recorder
        made.reads, made.reported, made.reused = (lambda done: {}), 0, 0
        return made

    def ready(made: _Reports, done: int) -> None:
        commits = SimpleNamespace(
            finished=lambda tasks: done,
            record=lambda number: replace(record, done=number),
            reads=lambda number: ["method.lr", "seed"],
            reused=0,
        )
        made.ready("key", None, SimpleNamespace(stream=small_stream), commits)

    first = reports(2)
    ready(first, 0)
    first.report(None, replace(record, done=1), 1.0)
    with pytest.raises(_Enough):
        first.report(None, replace(record, done=2), 1.0)
    assert [row["task"] for row in sent] == [1, 2]
    assert "task_01/x" not in sent[0]
    for done in (2, 3):  # nothing is trained; what lies beyond the stretch is not said
        sent.clear()
        with pytest.raises(_Enough):
            ready(reports(2), done)
        assert [row["task"] for row in sent] == [1, 2]
    sent.clear()
    last = reports(None)
    ready(last, 2)
    last.report(None, replace(record, done=3), 1.0)
    assert [(row["task"], row.get("reads")) for row in sent] == [(1, None), (2, None), (3, "method.lr,seed")]


def wrapped(error: Exception) -> UserExceptionWithTraceback:
    return UserExceptionWithTraceback(error, f"Traceback\n  many lines\n{error}")


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ConfigError("x"), True),
        (Diverged("x"), True),
        (TypeError("x"), True),
        (OutOfMemory("x"), True),
        (RuntimeError("Expected all tensors to be on the same device, but got cpu and cuda:0"), True),
        (RuntimeError("median CUDA does not have a deterministic implementation"), True),
        (RuntimeError("connection closed by peer"), False),
        (OSError("disk"), False),
        (MemoryError(), False),
    ],
)
def test_only_what_would_come_again_is_final(error, final):
    assert is_final(error) is final


def test_a_mistake_of_the_user_ends_the_run_at_once_with_its_own_line():
    callback = _EndOnMistake()
    with pytest.raises(ControllerError) as raised:
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo")), 1: wrapped(ConfigError("a: is wrong."))})
    found = explain(pickle.loads(pickle.dumps(raised.value)))
    assert (str(found), found.is_final) == ("a: is wrong.", True)


def test_a_lost_worker_is_tried_again():
    _EndOnMistake().after_exception(None, {0: wrapped(RuntimeError("gloo")), 1: ActorDiedError()})


def test_lost_nodes_are_no_failures_and_others_count_since_the_last_finished_task():
    callback = _EndOnMistake(1)
    lost = RuntimeError("The actor died because its node has died. Node Id: 5f")  # as Ray's GCS words it
    for _ in range(20):
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo")), 1: wrapped(lost)})
    for _ in range(3):
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo"))})
        callback.after_report(None, [{}], None)
    callback.after_exception(None, {0: wrapped(RuntimeError("gloo"))})
    with pytest.raises(ControllerError) as raised:
        callback.after_exception(None, {0: wrapped(RuntimeError("gloo"))})
    found = explain(pickle.loads(pickle.dumps(raised.value)))
    assert (str(found), found.is_final) == ("RuntimeError: gloo", False)


@pytest.mark.parametrize(
    ("error", "reason", "final"),
    [
        (WorkerGroupError("", {0: wrapped(Diverged("task_01: no number."))}), "task_01: no number.", True),
        (WorkerGroupError("", {0: wrapped(KeyError("a"))}), "KeyError: 'a'", False),
        (
            WorkerGroupError("", {0: wrapped(RuntimeError("peer")), 1: wrapped(ValueError("first\nsecond"))}),
            "ValueError: first",
            True,
        ),
        (ControllerError(WorkerGroupStartupTimeoutError(2)), "WorkerGroupStartupTimeoutError: ", False),
    ],
)
def test_a_failed_run_is_explained_in_one_line(error, reason, final):
    found = explain(error)
    assert str(found).startswith(reason)
    assert "\n" not in str(found)
    assert found.is_final is final


def test_the_worker_that_died_is_named_before_those_that_lost_it():
    found = explain(WorkerGroupError("", {0: wrapped(RuntimeError("peer")), 1: ActorDiedError()}))
    assert str(found).startswith("ActorDiedError")


def test_a_failure_survives_the_way_between_processes():
    again = pickle.loads(pickle.dumps(TrialFailed("why", is_final=True)))
    assert (str(again), again.is_final) == ("why", True)


def test_a_trial_driver_starts_without_the_science():
    code = (
        "import sys, orchestrator.on_ray.tune; "
        "late = ('torch', 'open_clip', 'torchvision', 'mlflow', 'orchestrator.learning.run'); "
        "print([m for m in late if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def plan(**more) -> TrialPlan:
    return TrialPlan("s", "/r", "", "uri", None, "/r", **more)


def test_a_worker_on_another_host_with_other_sources_refuses():
    from orchestrator.digests import source_digest

    _check_sources(plan())  # of an older version
    _check_sources(plan(host="elsewhere", sources=source_digest()))
    _check_sources(plan(host=platform.node(), sources="0123456789ab"))  # one's own edits while a sweep runs
    with pytest.raises(ConfigError, match=rf"code: {platform.node()} has other sources .*elsewhere.*Run `ray up`"):
        _check_sources(plan(host="elsewhere", sources="0123456789ab"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_worker_that_was_given_a_gpu_never_takes_the_cpu_in_its_stead():
    assert _device(plan()) == torch.device("cpu")
    with pytest.raises(ConfigError, match="torch finds no GPU on"):
        _device(plan(gpus_per_worker=1))


def test_a_single_process_meets_nobody():
    """Its trial starts without torch; and where torch's processes meet, it listens on every interface."""
    assert type(_backend(plan())) is BackendConfig
    assert _backend(plan(workers=2)).backend == "gloo"
    assert _backend(plan(workers=2, gpus_per_worker=1)).backend == "cpu:gloo,cuda:nccl"  # objects go by gloo
    assert _backend(plan(workers=2, patience=0.5)).timeout_s == 1800
    assert _backend(plan(workers=2)).timeout_s == 24 * 3600  # rank 0 may decode for hours
    assert _backend(plan(workers=2, gpus_per_worker=0.5)).backend == "gloo"  # NCCL wants a GPU of its own


def test_workers_whose_driver_has_ended_are_not_started_again():
    lost = RuntimeError("The actor is dead because its owner has died. Owner Id: 35ab")
    with pytest.raises(ControllerError) as error:
        _EndOnMistake().after_exception(None, {0: lost})
    assert str(error.value.controller_failure) == "the trial's driver has ended"
    _EndOnMistake().after_exception(None, {0: RuntimeError("The actor died unexpectedly.")})  # that one starts again
