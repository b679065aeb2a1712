"""Detection of runs whose process has ended: only where that is certain."""

import json
import os
import signal
import subprocess
import sys

import pytest

from ctvr.orchestrator.tracking import holders
from ctvr.orchestrator.tracking.holders import HOLDER, holder_tags, is_gone, this_process

PRINTS = (
    "from ctvr.orchestrator.tracking.holders import *; import sys; print(holder_tags()[HOLDER], flush=True); input()"
)


def other(**changes) -> dict[str, str]:
    """Return this process's tag with changes."""
    return {HOLDER: json.dumps({**this_process()._asdict(), **changes})}


@pytest.fixture
def child():
    """Start another process, and return it with its tag."""
    process = subprocess.Popen([sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process, {HOLDER: process.stdout.readline()}
    process.kill()
    process.communicate()


def test_a_process_is_gone_when_it_was_killed_and_not_before(child):
    process, tags = child
    assert not is_gone(tags)
    assert not is_gone(holder_tags())
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but its id is still in use
    assert is_gone(tags)
    process.wait()
    assert is_gone(tags)


def test_a_process_that_got_the_same_number_later_is_another():
    assert is_gone(other(began=this_process().began - 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere"},
        {"machine": "0" * 32},
        {"namespace": "pid:[1]"},
        {"pid": 0},
        {"pid": -1},
        {"pid": "1"},
        {"began": None},
        {"more": 1},
    ],
)
def test_a_process_that_cannot_be_checked_counts_as_running(changes):
    gone = {"pid": 2**22 + 1, "began": 1}
    assert is_gone(other(**gone))
    assert not is_gone(other(**{**gone, **changes}))


@pytest.mark.parametrize("tags", [{}, {HOLDER: ""}, {HOLDER: "{"}, {HOLDER: "[]"}, {HOLDER: "[" * 9999}, {HOLDER: "3"}])
def test_a_run_without_a_holder_cannot_be_judged(tags):
    assert not is_gone(tags)


@pytest.mark.parametrize(("first", "gone"), [("pid:[2]", True), ("pid:[9]", False)])
def test_a_restart_ends_processes_of_the_machine_and_not_of_containers(monkeypatch, first, gone):
    monkeypatch.setattr(holders, "_FIRST_NAMESPACE", first)
    monkeypatch.setattr(holders, "_identify_machine", lambda: ("host", "machine", "now", "pid:[2]"))
    assert is_gone(other(boot="before")) is gone


def test_a_system_without_process_information_gives_no_tag(monkeypatch):
    tags = other(pid=2**22 + 1)

    def unknown(*given):
        raise FileNotFoundError

    monkeypatch.setattr(holders, "_identify_machine", unknown)
    assert holder_tags() == {}
    assert not is_gone(tags)
