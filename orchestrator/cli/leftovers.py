"""Processes that a dead driver of a sweep left running, found by a token in their environment."""

from __future__ import annotations

from functools import partial

TOKEN = "CTVR_DRIVER"  # environment variable of a driver and all its descendants


def end_leftovers(token: str) -> None:
    """End the processes that a driver left running, recognized by its token."""
    from ctvr.orchestrator import processes  # loads psutil, which other commands do not need

    processes.terminate(partial(processes.find_by_environment, TOKEN, token))
