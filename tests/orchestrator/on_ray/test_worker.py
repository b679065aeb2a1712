"""Reports of a trial's process to the search, and refused sources, without a cluster."""

import platform
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.on_ray.worker import _check_sources, _Reports, _StopTrial
from tests.refusing import refuses

R1 = "t2v/r1"


def test_next_stretch_continues_the_reports(small_stream):
    """The store already holds more commits, or fewer, than the segment."""
    sent: list[dict] = []
    recorder = SimpleNamespace(ready=lambda *what: None, report=lambda *what: None)
    record = RunState(done=1, metrics=[{"stream/t2v/r1": 9.0 * task, "task_01/x": 0.0} for task in (1, 2, 3)])
    record.seconds = [1.0, 2.0, 3.0]

    def reports(until: int | None) -> _Reports:
        made = _Reports.__new__(_Reports)
        made.workers, made.tell, made.until, made.recorder = Workers(), sent.append, until, recorder
        made.reads, made.reported, made.reused, made.epochs = (lambda done: {}), 0, 0, 0
        return made

    def ready(made: _Reports, done: int) -> None:
        commits = SimpleNamespace(
            finished=lambda tasks: done,
            record=lambda number: replace(record, done=number),
            settings_read=lambda number: ["method.lr", "seed"],
            reused=0,
        )
        made.ready("key", None, SimpleNamespace(stream=small_stream), commits)

    first = reports(2)
    ready(first, 0)
    first.report(None, replace(record, done=1), 1.0)
    with pytest.raises(_StopTrial):
        first.report(None, replace(record, done=2), 1.0)
    assert [row["task"] for row in sent] == [1, 2]
    assert "task_01/x" not in sent[0]
    for done in (2, 3):  # nothing is trained; tasks after the segment are not reported
        sent.clear()
        with pytest.raises(_StopTrial):
            ready(reports(2), done)
        assert [row["task"] for row in sent] == [1, 2]
    sent.clear()
    last = reports(None)
    ready(last, 2)
    last.report(None, replace(record, done=3), 1.0)
    assert [(row["task"], row.get("reads")) for row in sent] == [(1, None), (2, None), (3, "method.lr,seed")]


def test_finished_run_reports_its_epochs_again():
    sent: list[dict] = []
    record = RunState(
        training=[{"step": 2.0 * epoch, "train/loss/x": 1.0, f"epoch/{R1}": epoch} for epoch in (1, 2, 3)]
    )

    def reports(until: int | None) -> _Reports:
        made = _Reports.__new__(_Reports)
        made.workers, made.tell, made.until, made.epochs, made.until_epoch = Workers(), sent.append, None, 4, until
        made.recorder = SimpleNamespace(report=lambda *what: None, log_training=lambda record: None)
        made.reads, made.reported, made.reported_epochs, made.reused = (lambda done: {}), 0, 0, 0
        return made

    first = reports(2)
    first.after_epoch(replace(record, training=record.training[:1]))
    with pytest.raises(_StopTrial):
        first.after_epoch(replace(record, training=record.training[:2]))
    assert sent == [{"epoch": epoch, "reused": 0, f"stream/{R1}": epoch} for epoch in (1, 2)]
    sent.clear()
    with pytest.raises(_StopTrial):  # the pause was stored, but the process ended before its report
        reports(2).after_epoch(replace(record, training=record.training[:2]))
    assert [row["epoch"] for row in sent] == [1, 2]
    done = replace(record, done=1, metrics=[{f"stream/{R1}": 9.0}], seconds=[1.0])
    for until, told in ((2, [1, 2]), (None, [1, 2, 3, 4])):  # training ended after three of four epochs
        sent.clear()
        last = reports(until)
        if until:
            with pytest.raises(_StopTrial):
                last.report(None, done, 1.0)
        else:
            last.report(None, done, 1.0)
        assert [row["epoch"] for row in sent] == told
    assert sent[-1] == {"task": 1, "seconds": 1.0, "reused": 0, "epoch": 4, f"stream/{R1}": 9.0}


def plan(**more) -> TrialPlan:
    return TrialPlan("s", "/r", "", "uri", None, "/r", **more)


def test_a_worker_on_another_host_with_other_sources_refuses():
    from ctvr.orchestrator.digests import source_digest

    _check_sources(plan())  # of an older version
    _check_sources(plan(host="elsewhere", sources=source_digest()))
    _check_sources(plan(host=platform.node(), sources="0123456789ab"))  # the user's own edits while a sweep runs
    with refuses("0123456789ab"):
        _check_sources(plan(host="elsewhere", sources="0123456789ab"))
