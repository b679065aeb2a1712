"""Which failures of a trial are tried again, and what is said of them: without a cluster."""

from __future__ import annotations

import pickle

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerGroupStartupTimeoutError

from orchestrator.errors import ConfigError, Diverged, OutOfMemory, TrialFailed
from orchestrator.on_ray.failures import explain, is_final


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
