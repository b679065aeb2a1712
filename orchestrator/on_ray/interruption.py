"""Requests to trials to store the task in training: from the driver of a sweep, or because a node is taken away.

At the first signal the driver writes a request to Ray's key-value store. Each trial stores a mid-task checkpoint at the
end of its epoch (learning/training/epoch_state.py), reports it, and waits until its process is ended. When all trials
have reported, the driver ends Tune's search.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from ctvr.orchestrator.console import say
from ctvr.orchestrator.learning.training.interruption import Interruption, Request
from ctvr.orchestrator.on_ray.internals import is_draining, kv_get, kv_put
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.processes import is_repeated

LOOK_SECONDS = 0.5  # interval at which the driver checks which trials have stored their state


def _request_key(session: str) -> str:
    return f"ctvr-stop-{session}"


def _paused_key(session: str, name: str) -> str:
    return f"ctvr-paused-{session}-{name}"


# ------------------------------------------------------------------------------------------ in a trial


def interruption_of(plan: TrialPlan, is_leaving: Callable[[], bool] = is_draining) -> Interruption:
    """Return an object through which a trial polls for requests to store its state.

    Args:
        plan: the trial's plan.
        is_leaving: returns whether the cloud takes away a node of the trial.
    """

    def ask() -> Request:
        is_taken = is_leaving()  # called equally often on every worker
        return "stop" if is_stopping(plan) else "save" if is_taken else ""

    return Interruption(ask)


def is_stopping(plan: TrialPlan) -> bool:
    """Return whether the driver of a plan's trials has requested their end."""
    return bool(kv_get(_request_key(plan.session)))


def await_end(plan: TrialPlan, name: str, rank: int = 0) -> NoReturn:
    """Report to the driver that a trial has stored its state, and wait until Tune ends this process.

    Only rank 0 reports, because only that worker stores the state. A trial that returned would count as complete, and
    a trial that raised an error would be started again.
    """
    if rank == 0:
        kv_put(_paused_key(plan.session, name), "1")
    while True:
        time.sleep(60)


# ------------------------------------------------------------------------------------------ in the driver


class OrderlyStop:
    """Ends a search at a signal as soon as its trials have stored their state, or immediately at a second signal."""

    def __init__(self, session: str) -> None:
        self.session, self.is_requested = session, False
        self._end_search: Any = None  # Tune's handler
        self._is_announced = self._is_over = False
        self._looked = 0.0

    def install(self) -> None:
        """Replace the signal handlers that Tune sets when a search begins; later calls have no effect."""
        if self._end_search is not None:
            return
        self._end_search = signal.getsignal(signal.SIGINT)
        if not callable(self._end_search):
            return
        for number in (signal.SIGINT, signal.SIGUSR1):
            try:
                signal.signal(number, self._handle)
            except ValueError:  # not the main thread; Tune does not set a handler there either
                return

    def _handle(self, number: int, frame: Any) -> None:
        if is_repeated(number):
            return
        if self.is_requested:
            self._end_search(signal.SIGINT, frame)
        self.is_requested = True

    def look(self, running: dict[str, bool]) -> None:
        """Pass a request on to the trials, and end the search when no trial remains that will store its state.

        Args:
            running: name of each running trial -> whether it makes progress and can store its state.
        """
        now = time.monotonic()
        if not self.is_requested or self._is_over or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if not self._is_announced:
            self._is_announced = True
            kv_put(_request_key(self.session), "1")
            say("stopping when the running trials end their epochs; Ctrl-C again stops at once", with_time=True)
        if not any(can and not kv_get(_paused_key(self.session, name)) for name, can in running.items()):
            self._is_over = True
            self._end_search(signal.SIGINT, None)
