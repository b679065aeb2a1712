"""What the driver of a search tells MLflow of others' runs, in a thread of its own.

A search hears of its trials in one loop: a server that takes a second for an answer, or that hangs, would otherwise
hold up every trial of the cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

Job = Callable[[], None]
QUIET_SECONDS = 60.0  # after a failure: how long nothing is tried


class TrackingQueue:
    """Does jobs one after another; one that fails is tried once more at the end.

    Pickled (Ray Tune does that with everything it is given), it is a new one without jobs.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._left: list[tuple[str, Job]] = []
        self._quiet_until = 0.0

    def __reduce__(self) -> tuple[type[TrackingQueue], tuple[()]]:
        return TrackingQueue, ()

    def add(self, what: str, job: Job) -> None:
        """Do it soon; `what` names it in a warning."""
        self._thread.submit(self._do, what, job)

    def _do(self, what: str, job: Job) -> None:
        if time.monotonic() < self._quiet_until:
            self._left.append((what, job))
            return
        try:
            job()
        except Exception as error:  # a server that is away must not end the sweep
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            self._left.append((what, job))
            log.warning("tracking: %s: %s. It is tried again at the end of the search.", what, error)

    def finish(self) -> None:
        """Wait for what is under way and try again what failed; what fails then is warned of. Never raises."""
        self._thread.submit(lambda: None).result()
        left, self._left = self._left, []
        for number, (what, job) in enumerate(left):
            try:
                job()
            except Exception as error:  # see `_do`
                more = f", nor were {rest} further records" if (rest := len(left) - number - 1) else ""
                log.warning("tracking: %s was not recorded%s: %s", what, more, error)
                return
