"""Trial failures that are retried, and their messages, without a cluster."""

import os
import pickle
import subprocess
import sys

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerGroupStartupTimeoutError

from ctvr.orchestrator.errors import ConfigError, NonFiniteLoss, OutOfMemory, TrialFailed
from ctvr.orchestrator.on_ray.failures import is_permanent, to_trial_failed


def wrapped(error: Exception) -> UserExceptionWithTraceback:
    return UserExceptionWithTraceback(error, f"Traceback\n  many lines\n{error}")


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ConfigError("x"), True),
        (NonFiniteLoss("x"), True),
        (TypeError("x"), True),
        (OutOfMemory("x"), True),
        (RuntimeError("Expected all tensors to be on the same device, but got cpu and cuda:0"), True),
        (RuntimeError("median CUDA does not have a deterministic implementation"), True),
        (RuntimeError("connection closed by peer"), False),
        (OSError("disk"), False),
        (ImportError("cannot import name 'x' from 'y'"), True),
        (ModuleNotFoundError("No module named 'y'"), True),
        (SyntaxError("invalid syntax"), True),
        (NameError("name 'z' is not defined"), True),
        (MemoryError(), False),
    ],
)
def test_only_errors_that_would_recur_are_final(error, final):
    assert is_permanent(error) is final


@pytest.mark.parametrize(
    ("error", "reason", "final"),
    [
        (WorkerGroupError("", {0: wrapped(NonFiniteLoss("task_01: no number."))}), "task_01: no number.", True),
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
    found = to_trial_failed(error)
    assert str(found).startswith(reason)
    assert "\n" not in str(found)
    assert found.is_permanent is final


def test_the_worker_that_died_is_named_before_those_that_lost_it():
    found = to_trial_failed(WorkerGroupError("", {0: wrapped(RuntimeError("peer")), 1: ActorDiedError()}))
    assert str(found).startswith("ActorDiedError")


def test_a_failure_survives_the_way_between_processes():
    again = pickle.loads(pickle.dumps(TrialFailed("why", is_permanent=True, traceback_and_log="a\nb")))
    assert (str(again), again.is_permanent, again.traceback_and_log) == ("why", True, "a\nb")


@pytest.mark.slow
def test_failure_holds_traceback_and_log_without_secrets(tmp_path):
    """A Ray worker's standard error is a file; its last output arrives through both kinds of failure."""
    code = """
import os, pickle, sys
from ctvr.orchestrator.on_ray.failures import attach_traceback
os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), 2)
for number in range(300):
    print("line", number, os.environ["MY_TOKEN"], file=sys.stderr, flush=True)
try:
    {}["the setting"]
except KeyError as error:
    attach_traceback(error)
    sys.stdout.buffer.write(pickle.dumps(error))
"""
    environment = {**os.environ, "MY_TOKEN": "cAnArY-123456"}
    words = [sys.executable, "-c", code, str(tmp_path / "log")]
    error = pickle.loads(subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    found = pickle.loads(pickle.dumps(to_trial_failed(WorkerGroupError("", {0: wrapped(error)}))))
    assert str(found) == "KeyError: 'the setting'"
    lines = found.traceback_and_log.splitlines()
    assert lines[0].startswith("Traceback")
    assert "KeyError: 'the setting'" in lines
    assert lines[-200:] == [f"line {number} ***" for number in range(100, 300)]
    assert "line 99 " not in found.traceback_and_log
