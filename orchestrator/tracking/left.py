"""Earlier records of a run: a record that a dead process left open is continued, a complete record is not rewritten.

A run counts as left open if its process is known to have ended (holders.py). For a trial, the sweep's process must also
have ended, because a sweep restarts its trials. Otherwise runs are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.tracking.holders import is_gone
from ctvr.orchestrator.tracking.internals import PARENT
from ctvr.orchestrator.tracking.messages import IDENTITY
from ctvr.orchestrator.tracking.outbox import locked
from ctvr.orchestrator.tracking.run_record import MAX_PARAM, RunRecord, as_text, metric_name, short
from ctvr.orchestrator.tracking.server import reason
from ctvr.orchestrator.tracking.tracker import Tracker

STOPPED = ("KILLED", "FAILED")

log = logging.getLogger(__name__)


def open_or_take_up(
    tracker: Tracker, stream: str, name: str, settings: Settings, tags: Mapping[str, str]
) -> tuple[str, str]:
    """Open a run outside any sweep, or continue the newest unfinished run with the same commits and settings.

    A run is continued if it was stopped or its process has ended. Returns run id and name.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # only one of two concurrent starts continues the run; without a lock both may
            stack.enter_context(locked(tracker.outbox.folder / "open.lock"))
        if (found := _unfinished(tracker, stream, settings, tags)) is not None:
            name = found.name
            log.info("tracking: continuing the unfinished run %s (%s)", name, found.run_id)
        return tracker.open_run(stream, name, settings, None, tags), name


def find_complete(tracker: Tracker, stream: str, settings: Settings, tags: Mapping[str, str]) -> RunRecord | None:
    """Return the newest complete run outside any sweep with the same commits and settings, if there is one."""
    same = _same(tracker, stream, settings, tags)
    return next((run for run in same if run.status == "FINISHED" and run.tags.get("ctvr.complete") == "true"), None)


def is_left(tracker: Tracker, run: RunRecord) -> bool:
    """Return whether a run is open although its process and, for a trial, the sweep's process have ended."""
    if run.status != "RUNNING" or not is_gone(run.tags):
        return False
    parent = run.tags.get(PARENT)
    return parent is None or is_gone(tracker.tags_of(parent))


def close_left(tracker: Tracker, stream: str) -> None:
    """Mark the runs and sweeps of a stream that were left open as KILLED."""
    try:
        for run in [run for run in tracker.find_open(stream) if is_left(tracker, run)]:
            tracker.close(run.run_id, "KILLED")
            log.info("tracking: run %s was closed, because its process has ended", run.name)
    except Exception as error:  # tracking must not end a training job
        log.info("tracking: runs that were left open cannot be searched: %s", reason(error))


def _unfinished(tracker: Tracker, stream: str, settings: Settings, tags: Mapping[str, str]) -> RunRecord | None:
    for run in _same(tracker, stream, settings, tags):
        if run.status in STOPPED or (run.status == "RUNNING" and is_gone(run.tags)):
            return run
    return None


def _same(tracker: Tracker, stream: str, settings: Settings, tags: Mapping[str, str]) -> list[RunRecord]:
    """Return the runs outside any sweep with the same commits and settings, newest first."""
    try:
        found = tracker.find_runs(stream, tags={"ctvr.commits": tags["ctvr.commits"]})
    except Exception as error:  # tracking must not end a training job
        log.info("tracking: earlier runs cannot be searched: %s", reason(error))
        return []
    texts = {metric_name(key): short(as_text(value), MAX_PARAM) for key, value in settings.items()}
    return [
        run
        for run in reversed(found)
        if run.tags.get(IDENTITY) == run.name and PARENT not in run.tags and run.settings == texts
    ]
