"""Number of concurrent trials of a driver, which follows the cluster and the other drivers on it."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import ray
from ray.util.state import list_placement_groups

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.capacity import capacity, request_resources_for
from ctvr.orchestrator.on_ray.nodes import is_started_here
from ctvr.orchestrator.on_ray.plan import TrialPlan

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0  # seconds between two checks of the cluster
ASK_SECONDS = 60.0  # interval at which the lease of resources is renewed
WAITING_SECONDS = 60.0  # time after which a driver counts as waiting; Ray uses free resources sooner


class ConcurrencyController:
    """Adjusts the number of concurrent trials while nodes join and leave, and while other drivers wait for resources.

    A driver that starts its next trial as soon as a trial ends never releases resources to other drivers. So while N
    other drivers wait, it runs at most 1 / (N + 1) of the trials that fit the cluster, but at least one trial.

    Args:
        plan: plan of the trials.
        limiter: object with `max_concurrent`, which Ray Tune reads before each new trial.
        most: the user's limit of concurrent trials, if any.
    """

    def __init__(self, plan: TrialPlan, limiter: Any, most: int | None = None) -> None:
        self.plan, self.limiter, self.most = plan, limiter, most
        self._asked, self._asked_at = -1, -math.inf
        self._looked = -math.inf
        self.others = 0  # number of other drivers that wait for resources
        self._others_since = math.inf

    def update(self, left: int, running: int = 0) -> int | None:
        """Request resources for the remaining trials, and set the limit of concurrent trials to the present capacity.

        Return the new limit, or None if it did not change.

        Args:
            left: number of trials that run or wait.
            running: number of trials that run.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        wanted = min(left, self.most or left)
        if wanted != self._asked or now - self._asked_at >= ASK_SECONDS:
            request_resources_for(self.plan, wanted, running)
            self._asked, self._asked_at = wanted, now
        try:
            concurrent = capacity(self.plan, self.most).concurrent
        except ConfigError:  # the last suitable node left; its trials are retried on other nodes
            return None
        self.others = self._count_waiting(now)
        if self.others:
            concurrent = max(1, concurrent // (1 + self.others))
        if concurrent == self.limiter.max_concurrent:
            return None
        self.limiter.max_concurrent = concurrent
        return concurrent

    def close(self) -> None:
        if self._asked > 0:
            request_resources_for(self.plan, 0)

    def _count_waiting(self, now: float) -> int:
        """Return the number of other drivers that wait, or 0 until drivers have waited for `WAITING_SECONDS`."""
        others = len(waiting_drivers())
        self._others_since = min(self._others_since, now) if others else math.inf
        return others if now - self._others_since >= WAITING_SECONDS else 0


def waiting_drivers() -> set[str]:
    """Return the job IDs of other drivers whose trials wait for resources; empty if Ray's dashboard does not respond.

    Such trials of Tune and Ray Train are pending placement groups, including groups that can never be placed.
    """
    if is_started_here():
        return set()
    job = ray.get_runtime_context().get_job_id()
    try:
        waiting = list_placement_groups(
            filters=[("state", "=", "PENDING"), ("creator_job_id", "!=", job)], timeout=5, raise_on_missing_output=False
        )
    except Exception as error:  # of the HTTP client or of Ray
        log.debug("placement groups cannot be listed: %s", error)
        return set()
    return {each.creator_job_id for each in waiting}
