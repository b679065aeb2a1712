"""The number of concurrent trials follows the cluster, and leaves other drivers their share."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray import concurrency
from ctvr.orchestrator.on_ray.concurrency import ConcurrencyController, waiting_drivers
from ctvr.orchestrator.on_ray.plan import Capacity, TrialPlan


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    return TrialPlan("s", str(tmp_path), "", "", None, str(tmp_path / "ray"), {"method": "lora"}, ("shapes",))


@pytest.fixture
def cluster(monkeypatch) -> SimpleNamespace:
    """A cluster whose capacity, clock and requests the test controls."""
    made = SimpleNamespace(room=2, now=0.0, asked=[], waiting=set())

    def capacity(plan: TrialPlan, most: int | None) -> Capacity:
        if not made.room:
            raise ConfigError("nothing fits")
        return Capacity(8, 0, min(made.room, most or made.room))

    monkeypatch.setattr(concurrency, "capacity", capacity)
    monkeypatch.setattr(concurrency, "request_resources_for", lambda plan, trials, running=0: made.asked.append(trials))
    monkeypatch.setattr(concurrency.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(concurrency, "waiting_drivers", lambda: made.waiting)
    return made


def test_nodes_that_join_are_used_and_nodes_that_leave_are_not_waited_for(plan, cluster):
    limiter = SimpleNamespace(max_concurrent=2)
    room = ConcurrencyController(plan, limiter)
    for seconds, there, found, limit in [
        (0, 2, None, 2),
        (5, 4, None, 2),
        (20, 4, 4, 4),
        (40, 1, 1, 1),
        (60, 0, None, 1),
    ]:
        cluster.now, cluster.room = float(seconds), there
        assert room.update(8) == found
        assert limiter.max_concurrent == limit


def test_an_autoscaler_is_asked_for_the_remaining_trials_alone(plan, cluster):
    room = ConcurrencyController(plan, SimpleNamespace(max_concurrent=2), most=3)
    for seconds, left in [(0, 8), (20, 8), (40, 2), (60, 2), (110, 2)]:
        cluster.now = float(seconds)
        room.update(left)
    room.close()
    assert cluster.asked == [
        3,
        2,
        2,
        0,
    ]  # the lease is renewed after a minute


def test_drivers_that_wait_for_a_minute_get_an_equal_share(plan, cluster):
    cluster.room = 8
    limiter = SimpleNamespace(max_concurrent=8)
    room = ConcurrencyController(plan, limiter)
    for seconds, waiting, found in [
        (0, set(), None),
        (10, {"02"}, None),
        (60, {"02"}, None),
        (70, {"02"}, 4),
        (80, {"02", "03"}, 2),
        (90, {f"{job}" for job in range(20)}, 1),
        (100, set(), 8),
        (110, {"02"}, None),  # it waits again
        (170, {"02"}, 4),
    ]:
        cluster.now, cluster.waiting = float(seconds), waiting
        assert room.update(9) == found
        assert room.others == (len(waiting) if limiter.max_concurrent < 8 else 0)


@pytest.mark.parametrize("fails", [False, True])
def test_only_placement_groups_of_other_drivers_count(monkeypatch, fails):
    asked = []

    def listed(filters, **_):
        asked.extend(filters)
        if fails:
            raise ConnectionError("no dashboard")
        return [SimpleNamespace(creator_job_id=job) for job in ("02", "03", "02")]

    monkeypatch.setattr(concurrency, "list_placement_groups", listed)
    context = SimpleNamespace(get_job_id=lambda: "07", gcs_address="10.0.0.1:6379")
    monkeypatch.setattr(concurrency.ray, "get_runtime_context", lambda: context)
    assert waiting_drivers() == (set() if fails else {"02", "03"})
    assert asked == [("state", "=", "PENDING"), ("creator_job_id", "!=", "07")]
    context.gcs_address = "127.0.0.1:6379"  # a cluster of this sweep alone
    asked.clear()
    assert (waiting_drivers(), asked) == (set(), [])
