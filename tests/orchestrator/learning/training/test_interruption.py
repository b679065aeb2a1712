"""Signals that stop a run after its epoch."""

import math
import os
import signal

import pytest

from ctvr.orchestrator import processes
from ctvr.orchestrator.learning.training.interruption import SIGNALS, Interruption, stop_at_signals


@pytest.fixture(autouse=True)
def _no_signal_so_far(monkeypatch):
    monkeypatch.setattr(processes, "_signaled", [-math.inf])


@pytest.mark.parametrize("name", SIGNALS)
def test_the_first_signal_requests_a_pause_and_the_second_ends_at_once(name, monkeypatch):
    interruption, number = Interruption(), getattr(signal, name)
    interruption.can_pause = True
    before = signal.getsignal(number)
    now = [100.0]
    monkeypatch.setattr("ctvr.orchestrator.processes.time.monotonic", lambda: now[0])
    with stop_at_signals(interruption):
        os.kill(os.getpid(), number)
        assert interruption.request() == "stop"
        if name != "SIGINT":
            os.kill(os.getpid(), number)  # as the terminal that a shell closes
            now[0] += 3
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_a_run_that_would_store_nothing_ends_at_the_first_signal():
    interruption = Interruption()
    with pytest.raises(KeyboardInterrupt), stop_at_signals(interruption):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not interruption.is_stopping


def test_an_ignored_signal_stays_ignored():
    interruption = Interruption()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_at_signals(interruption):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_request_of_the_cluster_counts_unless_this_process_is_to_stop():
    interruption = Interruption(lambda: "save")
    assert interruption.request() == "save"
    interruption.can_pause = True
    assert interruption.stop()
    assert interruption.request() == "stop"
    assert not interruption.stop()
