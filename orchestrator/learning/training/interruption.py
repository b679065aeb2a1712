"""Requests to end a run early without the loss of the task in training.

A run ends in order only where its state is stored: at a pause (mid-task checkpoint, epoch_state.py), or at a commit.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from ctvr.orchestrator.console import say
from ctvr.orchestrator.processes import is_repeated

# "save": the machine may be taken away, so the state is stored after every epoch; "stop": the run also ends then
Request = Literal["", "save", "stop"]
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # Ctrl-C, a scheduler, a closed terminal, Slurm's time limit


def no_request() -> Request:
    """Return "", which means that nothing is requested."""
    return ""


class Interruption:
    """Requests to the run of this process.

    Args:
        ask: returns the request of a cluster; called after every epoch and task, equally often on every worker.

    Attributes:
        can_pause: whether the current task has begun and its next epoch will be stored; the loop sets it.
        is_stopping: whether this process must end at the next pause or commit.
    """

    def __init__(self, ask: Callable[[], Request] = no_request) -> None:
        self.ask, self.can_pause, self.is_stopping = ask, False, False

    def request(self) -> Request:
        """Return the current request."""
        asked = self.ask()
        return "stop" if self.is_stopping else asked

    def stop(self) -> bool:
        """Request the end of the run; return False if it must end at once: it cannot pause, or an end was requested."""
        if self.is_stopping or not self.can_pause:
            return False
        self.is_stopping = True
        return True


@contextlib.contextmanager
def stop_at_signals(interruption: Interruption) -> Iterator[None]:
    """Let a first signal in a `with` block end the run at its next pause; let a second signal raise KeyboardInterrupt.

    Within two seconds only Ctrl-C counts as a second signal (`is_repeated`). Signals that this process ignores remain
    ignored. Outside the main thread the function has no effect.
    """

    def handle(number: int, frame: Any) -> None:
        if is_repeated(number):
            return
        if not interruption.stop():
            raise KeyboardInterrupt
        line = (
            f"{signal.Signals(number).name}: stopping after this epoch (after the last one: after its evaluation). "
            "The same command resumes there. Ctrl-C again stops at once."
        )
        threading.Thread(target=say, args=(line,), daemon=True).start()  # the main thread may be within a write

    before = {}
    with contextlib.suppress(ValueError):  # not the main thread
        for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
