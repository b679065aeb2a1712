"""Queue of MLflow updates that the driver of a search makes for its trials, in a separate thread.

A search handles all trials in one loop, so without the queue a slow or hanging tracking server would delay every trial
of the cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

Job = Callable[[], None]
QUIET_SECONDS = 60.0  # time after a failure in which jobs are postponed to the end of the search


class TrackingQueue:
    """Runs jobs one after another; a failed job is retried once at the end.

    Ray Tune pickles its callbacks; unpickling a queue gives a new, empty one.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._left: list[tuple[str, Job]] = []
        self._quiet_until = 0.0

    def __reduce__(self) -> tuple[type[TrackingQueue], tuple[()]]:
        return TrackingQueue, ()

    def add(self, what: str, job: Job) -> None:
        """Queue a job; `what` names it in a warning."""
        self._thread.submit(self._do, what, job)

    def _do(self, what: str, job: Job) -> None:
        if time.monotonic() < self._quiet_until:
            self._left.append((what, job))
            return
        try:
            job()
        except Exception as error:  # an unreachable server must not end the sweep
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            self._left.append((what, job))
            log.warning("tracking: %s: %s. It is retried at the end of the search.", what, error)

    def finish(self) -> None:
        """Wait for running jobs and retry failed jobs; log a warning if a job fails again. Never raises."""
        self._thread.submit(lambda: None).result()
        left, self._left = self._left, []
        for number, (what, job) in enumerate(left):
            try:
                job()
            except Exception as error:  # see `_do`
                more = f", nor were {rest} further records" if (rest := len(left) - number - 1) else ""
                log.warning("tracking: %s was not recorded%s: %s", what, more, error)
                return
