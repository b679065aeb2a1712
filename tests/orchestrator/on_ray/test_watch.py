"""Trials that stand still, and the orderly end of a search, without a cluster."""

import json
import re
import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ctvr.orchestrator.on_ray import interruption, watch
from ctvr.orchestrator.on_ray.interruption import OrderlyStop
from ctvr.orchestrator.on_ray.plan import TrialPlan, progress_note
from ctvr.orchestrator.on_ray.watch import TrialWatch

PLAN = TrialPlan("s", "/r", "", "", None, "/r", patience=0.1)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the content of the key-value store."""
    kept: dict[str, str] = {}
    for module in (watch, interruption):
        monkeypatch.setattr(module, "kv_get", lambda key: kept.get(key, ""))
    monkeypatch.setattr(interruption, "kv_put", kept.__setitem__)
    return kept


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets the time of the driver."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return lambda at: now.__setitem__(0, at)


def trial() -> SimpleNamespace:
    state = SimpleNamespace(ray_actor="the actor")
    return SimpleNamespace(trial_id="a", status="RUNNING", config={"run": {"label": "l"}}, temporary_state=state)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"^[0-9:]{8}  ", "", line) for line in capsys.readouterr().err.splitlines()]


def test_a_trial_that_stands_still_is_named_and_after_the_time_limit_restarted(notes, clock, monkeypatch, capsys):
    killed: list[object] = []
    monkeypatch.setattr(watch.ray, "kill", killed.append)
    made, one = TrialWatch("0", lambda _: PLAN, lambda _: "trial 1"), trial()
    monkeypatch.setattr(made.stop, "install", lambda: None)
    notes[progress_note(PLAN.session, "s-l")] = json.dumps(["host 7", 3, "task_01, epoch 1, step 2", True])
    for at in (0, 60, 80, 120, 350):
        clock(at + 100.0)
        made.look([one])
    assert killed == []
    clock(470.0)
    made.look([one])
    assert killed == ["the actor"]
    assert made.killed == {"a"}
    assert lines(capsys) == [
        "trial 1  stalled: no progress for 80 s (host 7, in task_01, epoch 1, step 2)",
        "trial 1  restarting its process after 6 min without progress",
    ]


@pytest.fixture
def stop() -> OrderlyStop:
    made = OrderlyStop("0")
    made.ended = []  # type: ignore[attr-defined]
    made._end_search = lambda *given: made.ended.append(given)  # type: ignore[attr-defined]
    return made


def test_a_search_ends_when_every_trial_that_can_has_paused(stop, notes, clock, capsys):
    stop.look({"s-l": True})
    assert notes == {}
    stop._handle(signal.SIGINT, None)
    for at in (1.0, 2.0):
        clock(at)
        stop.look({"s-l": True, "s-decodes": False})
    assert interruption.is_stopping(TrialPlan("s", "", "", "", None, "", session="0"))
    assert stop.ended == []
    notes[interruption._paused_key("0", "s-l")] = "1"
    for at in (3.0, 4.0):
        clock(at)
        stop.look({"s-l": True, "s-decodes": False})
    assert len(stop.ended) == 1
    assert len(lines(capsys)) == 1


def test_a_second_signal_ends_a_search_at_once(stop):
    stop._handle(signal.SIGINT, None)
    assert stop.ended == []
    stop._handle(signal.SIGINT, None)
    assert len(stop.ended) == 1


def test_a_trial_stores_every_epoch_while_its_node_is_taken_away_and_ends_with_the_search(notes):
    plan, is_taken = TrialPlan("s", "", "", "", None, "", session="0"), [False]
    made = interruption.interruption_of(plan, lambda: is_taken[0])
    assert made.request() == ""
    is_taken[0] = True
    assert made.request() == "save"
    notes[interruption._request_key("0")] = "1"
    assert made.request() == "stop"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_worker_that_stores_a_pause_reports_it(rank, notes, monkeypatch):
    monkeypatch.setattr(interruption.time, "sleep", lambda seconds: (_ for _ in ()).throw(TimeoutError))
    with pytest.raises(TimeoutError):
        interruption.await_end(PLAN, "s-l", rank)
    assert bool(notes) == (rank == 0)
