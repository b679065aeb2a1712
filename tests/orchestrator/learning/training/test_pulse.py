"""A stalled worker is named by the workers that wait for it; a slow one is not."""

import json
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from ctvr.orchestrator.learning.training.pulse import NO_PROGRESS, Peer, ProgressWatch, Pulse, report_progress
from ctvr.orchestrator.processes import beat, record_position
from tests.workers.still import named_by_the_other, slow_first

EVERY, STILL = 0.05, 0.5


def wait(until: Callable[[], object]) -> None:
    """Wait until a condition holds, at most a minute."""
    end = time.monotonic() + 60
    while not until() and time.monotonic() < end:
        time.sleep(0.01)
    assert until()


@pytest.fixture
def three() -> Iterator[tuple[list[Pulse], list[list[str]]]]:
    """Make the pulses of three workers in this process, and collect their lines."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    peers = [Peer("127.0.0.1", each.getsockname()[1], platform.node(), os.getpid()) for each in sockets]
    told: list[list[str]] = [[], [], []]
    pulses = [Pulse(rank, sockets[rank], peers, "s", told[rank].append, EVERY, STILL) for rank in range(3)]
    yield pulses, told
    for pulse in pulses:
        if pulse._thread.is_alive():
            pulse.close()


def test_the_first_waiting_worker_reports_the_stalled_one(three):
    pulses, told = three
    for pulse in pulses:
        pulse.start()
    record_position("task_02, epoch 3, step 4")
    wait(lambda: all(len(pulse.heard) == 2 for pulse in pulses))
    assert not any(pulse.named() for pulse in pulses)
    wait(lambda: "worker 2 is in task_02, epoch 3, step 4" in pulses[0].positions())
    pulses[1].close()
    wait(lambda: pulses[0].named() and pulses[2].named() and told[0])
    (said,) = told[0]
    assert said.startswith(f"worker 1 of 3 ({platform.node()}, process {os.getpid()}) is stalled: no heartbeat for")
    assert said.endswith("worker 0 waits for it in task_02, epoch 3, step 4")
    pulses[0].close()  # now the last worker reports
    wait(lambda: told[2])
    assert "worker 0 of 3" in told[2][0]


@pytest.mark.parametrize(("waits", "stands"), [(0, 1), (1, 0)])
def test_a_resumed_worker_is_reported_and_no_longer_named(three, waits, stands):
    pulses, told = three
    pulses[waits].start()
    pulses[stands]._send()
    wait(lambda: pulses[waits].named())
    pulses[stands]._send()
    wait(lambda: len(told[waits]) == 2)
    assert told[waits][1].startswith(f"worker {stands} of 3 has resumed")
    assert not pulses[waits].named()


def test_unknown_senders_and_silent_workers_are_not_reported(three):
    pulses, _ = three
    pulse = pulses[0]
    here = pulse.own.getsockname()
    for sign in (b"", b"{", b"7", json.dumps(["other", 1, ""]).encode(), b"\xff" * 100):
        pulses[2].own.sendto(sign, here)
    pulse._hear()
    assert pulse.heard == {}
    pulse._judge(time.monotonic() + 1000)
    assert not pulse.named()


def test_a_stalled_process_reports_no_other_when_it_resumes(three):
    """Its clock has advanced without any heartbeat of its own."""
    pulses, told = three
    pulse = pulses[0]
    pulse.heard = {1: time.monotonic() - 1000, 2: time.monotonic() - 1000}
    pulse.start()
    pulses[1]._send()
    pulses[2]._send()
    wait(lambda: len(pulse.heard) == 2 and min(pulse.heard.values()) > time.monotonic() - 100)
    assert not told[0]


@pytest.mark.slow
def test_a_stopped_process_of_two_is_named_and_a_slow_first_one_is_not():
    for rank in (0, 1):
        (seconds,) = named_by_the_other(rank, times=1)
        assert seconds is not None
    assert slow_first(seconds=3.0, times=1) == []


def text(beats: int, process: str = "host 1", can_pause: bool = True) -> str:
    return json.dumps([process, beats, f"task_01, epoch 1, step {beats}", can_pause])


def test_a_trial_without_progress_is_named_once_and_again_when_it_resumes():
    watch = ProgressWatch(0.0)
    assert [watch.look(text(1), at) for at in (10.0, NO_PROGRESS, 11.0 + NO_PROGRESS, 500.0)] == ["", "", "stalled", ""]
    assert watch.place == "host 1, in task_01, epoch 1, step 1"
    assert not watch.can_pause
    assert watch.look(text(2), 600.0) == "resumed"
    assert watch.can_pause


def test_slow_steps_are_not_named_but_a_new_process_is_no_slow_step():
    slow, restarted = ProgressWatch(0.0), ProgressWatch(0.0)
    for beats, at in ((1, 0.0), (2, 60.0), (3, 120.0)):
        assert slow.look(text(beats), at) == ""
    assert slow.look(text(3), 299.0) == ""  # three times the longest step
    assert slow.look(text(3), 301.0) == "stalled"
    assert restarted.look(text(1), 0.0) == ""
    assert restarted.look(text(1, "host 2"), 60.0) == ""
    assert restarted.look(text(1, "host 2"), 61.0 + NO_PROGRESS) == "stalled"


def test_a_hung_main_thread_makes_no_progress_although_its_threads_run():
    sent: list[str] = []
    with report_progress(sent.append, lambda: False, every=0.01):
        time.sleep(0.1)
        assert len(sent) == 1
        record_position("task_01")
        time.sleep(0.1)
        beat()
        time.sleep(0.1)
    read = [json.loads(each)[1:] for each in sent]
    first = read[0][0]
    assert read == [[first, read[0][1], False], [first + 1, "task_01", False], [first + 2, "task_01", False]]
