"""Messages about running trials, and their concurrency, without a cluster."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError, RayTaskError

from ctvr.orchestrator.errors import TrialFailed
from ctvr.orchestrator.on_ray import callbacks, internals, memory
from ctvr.orchestrator.on_ray.callbacks import BracketMonitor, TrialMonitor, failures_of_process
from ctvr.orchestrator.on_ray.failures import MOST_SHORT_OF_MEMORY
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig, TrialPlan, run_name
from ctvr.orchestrator.tracking.tracker import Tracker, create_store

NUMBERS = {"a": 1, "b": 2, "c": 3, "0": 2, "1": 1}  # of trials, by the last letter of their names


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return TrialPlan("s", str(tmp_path), "", uri, None, str(tmp_path / "ray"), {"method": "lora"}, ("shapes",))


@pytest.fixture(autouse=True)
def _no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_errors", {})


def trial(trial_id: str, **config: object) -> SimpleNamespace:
    config = {"row": "", "number": NUMBERS[trial_id[-1]], "run": {"label": f"lora-{trial_id}"}, **config}
    return SimpleNamespace(trial_id=trial_id, config=config, num_failures=0)


def failed_by(error: Exception, trial: SimpleNamespace) -> SimpleNamespace:
    """Return the trial after Tune has reported its error to this process."""
    internals._errors[trial.trial_id] = error
    return trial


def row(task: int, **more: float) -> dict[str, float]:
    return {"task": task, "stream/t2v/r1": 40.0, GAIN: 3.5, "stream/t2v/bwf": 1.0, "seconds": 2.0, **more}


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in capsys.readouterr().err.splitlines()]


def test_every_finished_task_is_one_line_however_often_it_is_reported(plan, capsys):
    watcher = TrialMonitor(plan, 4, 3, 2)
    for task in (1, 1, 2, 1, 2):
        watcher.on_trial_result(0, [], trial("a"), row(task))
    assert lines(capsys) == [
        "trial 1/4  task 1/3  R@1 40.00  (+3.50 over zero-shot)  forgetting 1.00  2.0 s",
        "trial 1/4  task 2/3  R@1 40.00  (+3.50 over zero-shot)  forgetting 1.00  2.0 s",
    ]


def test_a_complete_trial_reports_its_own_time_and_the_mean_for_the_others(plan, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ctvr.orchestrator.on_ray.callbacks.time.monotonic", lambda: now[0])
    watcher = TrialMonitor(plan, 4, 1, 2)
    for name in "ab":
        watcher.on_trial_start(0, [], trial(name))
    for name, end in (("a", 60.0), ("b", 90.0), ("c", 120.0)):
        watcher.on_trial_start(0, [], trial(name))
        now[0] = end
        watcher.on_trial_result(0, [], trial(name), row(1))
        watcher.on_trial_complete(0, [], trial(name))
    said = [line for line in lines(capsys) if "complete" in line]
    assert said == [
        "trial 1/4  complete after 60 s; 3 remain, about 2 min",
        "trial 2/4  complete after 90 s; 2 remain, about 75 s",
        "trial 3/4  complete after 30 s; 1 remain, about 60 s",
    ]


def test_a_stopped_and_a_failed_trial_are_closed_in_mlflow(plan, capsys):
    create_store(plan.tracking_uri, Path(plan.root), "stream")
    tracker = Tracker(plan.tracking_uri, Path(plan.root))
    parent = tracker.open_sweep("s", "stream", {})
    ids = {}
    for trial_id in ("a_0", "a_1", "a_10"):
        tags = {"ctvr.trial": run_name(plan, {"run": {"label": f"lora-{trial_id}"}})}
        ids[trial_id] = tracker.open_run("stream", trial_id, {}, parent, tags)
    search = SimpleNamespace(halving={"": SimpleNamespace(search=SearchConfig(trials=3), unit="task")})
    watcher = BracketMonitor({"": plan}, 3, 3, 2, None, search)
    watcher.stopped("", 1, "lora-a_1", 1)
    error = TrialFailed("data.x: is wrong.", traceback_and_log="Traceback\nof a worker")
    watcher.on_trial_error(0, [], failed_by(error, trial("a_0")))
    watcher.records.finish()
    assert tracker.download(ids["a_0"], "failures/0.txt").read_text() == "Traceback\nof a worker"
    other = TrialMonitor(replace(plan, parent=parent), 1, 3, 2)
    other.on_trial_recover(0, [], failed_by(error, trial("b")))  # it opened no run
    other.records.finish()
    assert tracker.download(parent, "failures/s-lora-b-0.txt").read_text() == "Traceback\nof a worker"
    runs = {run.run_id: run for run in Tracker(plan.tracking_uri, Path(plan.root)).find_runs(sweep="s")}
    assert (runs[ids["a_1"]].status, runs[ids["a_1"]].tags["ctvr.stopped"]) == ("FINISHED", "halving after task 1")
    assert (runs[ids["a_0"]].status, runs[ids["a_0"]].tags["ctvr.error"]) == ("FAILED", "data.x: is wrong.")
    assert runs[ids["a_10"]].status == "RUNNING"
    assert lines(capsys) == [
        "trial 1/3  stopped after task 1: others are better",
        "trial 2/3  failed: data.x: is wrong.",
    ]


def test_a_driver_that_is_lost_with_its_node_is_not_counted(plan):
    node, process = "The actor died because its node has died. Node Id: 5f", "The actor died unexpectedly."
    for text, allowed in ((node, 2), (process, 1)):
        lost = failed_by(RuntimeError(text), trial("a"))
        lost.max_failures = 1
        TrialMonitor(plan, 1, 3, 1).on_trial_recover(0, [], lost)
        assert lost.max_failures == allowed


def test_memory_that_others_take_is_waited_for_and_counted_apart(plan, monkeypatch):
    killed, waited = "1 worker(s) were killed due to the node running low on memory. 23.1GB used / 24GB limit", []
    monkeypatch.setattr(callbacks, "is_started_here", lambda: True)
    monkeypatch.setattr(callbacks, "await_memory", lambda *told: waited.append(told))
    watcher, short = TrialMonitor(plan, 1, 3, 1), failed_by(RayActorError(error_msg=killed), trial("a"))
    short.max_failures = 3
    for _ in range(MOST_SHORT_OF_MEMORY + 2):
        watcher.on_trial_recover(0, [], short)
    assert short.max_failures == 3 + MOST_SHORT_OF_MEMORY
    watcher.on_trial_result(0, [], short, row(1))
    watcher.on_trial_recover(0, [], short)
    assert short.max_failures == 4
    assert len(waited) == MOST_SHORT_OF_MEMORY + 3
    of_its_own = f"{killed} actual memory used=12.50GB, "  # too large by itself: other processes did not cause it
    greedy = failed_by(RayActorError(error_msg=of_its_own), trial("a"))
    greedy.max_failures = 3
    watcher.on_trial_recover(0, [], greedy)
    assert greedy.max_failures == 3


def test_failures_count_per_task_and_a_repeated_one_has_one_attempt(plan):
    watcher, failing = TrialMonitor(plan, 1, 3, 1), trial("a")
    failing.max_failures = failures_of_process(plan)
    failing.num_failures = 2
    watcher.on_trial_result(0, [], failing, row(1))
    assert failing.max_failures == 2 + 3
    watcher.on_trial_result(0, [], failing, row(1))  # repeated after a restart: no progress
    failing.num_failures = 3
    failed_by(RayTaskError("f", "Traceback", TrialFailed("why", True)), failing)
    watcher.on_trial_recover(0, [], failing)
    assert failing.max_failures == 3
    workers = replace(plan, workers=2)  # restarted by Ray Train
    assert failures_of_process(workers) == 1
    failing.max_failures = 1
    TrialMonitor(workers, 1, 3, 1).on_trial_result(0, [], failing, row(1))
    assert failing.max_failures == 1


def test_an_unreachable_tracking_server_does_not_end_the_sweep(plan):
    away = replace(plan, tracking_uri="http://127.0.0.1:9")
    watcher = TrialMonitor(away, 1, 3, 1)
    watcher.on_trial_result(0, [], trial("a"), row(1))
    watcher.on_trial_complete(0, [], trial("a"))
    watcher.records.finish()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TrialFailed("optim.lr: is too high."), "optim.lr: is too high."),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (RayTaskError("f", "Traceback", TrialFailed("why")), "why"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_failure_is_reported_in_one_line(plan, capsys, error, reason):
    TrialMonitor(plan, 1, 1, 1).on_trial_error(0, [], failed_by(error, trial("a")))
    internals._errors.clear()
    TrialMonitor(plan, 1, 1, 1).on_trial_error(0, [], trial("a"))
    assert lines(capsys) == [f"trial 1/1  failed: {reason}", "trial 1/1  failed: no reason was recorded"]


@pytest.mark.slow
def test_trials_of_a_table_are_named_by_their_row_and_closed_in_its_sweep(plan, capsys):
    create_store(plan.tracking_uri, Path(plan.root), "stream")
    tracker = Tracker(plan.tracking_uri, Path(plan.root))
    plans = {row: replace(plan, sweep=f"t-{row}", settings={"method": row}) for row in ("lora", "lwf")}
    ids = {}
    for row, made in plans.items():
        parent = tracker.open_sweep(made.sweep, "stream", {})
        ids[row] = tracker.open_run(
            "stream", row, {}, parent, {"ctvr.trial": run_name(made, {"run": {"label": "lora-1"}})}
        )
    watcher = TrialMonitor(plans, 2, 3, 2)
    failed = failed_by(TrialFailed("why"), trial("1", row="lwf"))
    watcher.on_trial_error(0, [], failed)
    watcher.records.finish()
    assert lines(capsys) == ["trial 1/1 lwf  failed: why"]
    runs = {run.run_id: run.status for run in Tracker(plan.tracking_uri, Path(plan.root)).find_runs()}
    assert runs == {ids["lora"]: "RUNNING", ids["lwf"]: "FAILED"}


def test_the_monitor_reports_a_new_capacity_and_keeps_no_process_beyond_its_share(plan, capsys):
    room = SimpleNamespace(update=lambda left, running: numbers.pop(0), others=0)
    watcher = TrialMonitor(plan, 9, 3, 2, room)
    numbers = [None, 4, 2]
    for step in range(2):
        watcher.on_step_begin(step, [])
    for name in ("a", "b"):
        watcher.on_trial_start(0, [], trial(name))
    assert (watcher.concurrent, watcher.processes_ahead()) == (4, 7)
    room.others = 1
    watcher.on_step_begin(2, [])
    assert (watcher.concurrent, watcher.processes_ahead()) == (2, 0)
    assert lines(capsys) == [
        "the cluster now has resources for 4 concurrent trials",
        "this sweep now runs at most 2 trials at once (other drivers waiting: 1)",
    ]


# ------------------------------------------------------------------------------------------------------- searches


def test_segments_of_a_trial_read_as_one_and_a_stopped_one_is_closed(plan, capsys, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.on_ray.callbacks.time.monotonic", lambda: 0.0)
    create_store(plan.tracking_uri, Path(plan.root), "stream")
    tracker = Tracker(plan.tracking_uri, Path(plan.root))
    run = tracker.open_run("stream", "x", {}, tracker.open_sweep("s", "stream", {}), {"ctvr.trial": "s-lora-02-ab"})
    halving = SimpleNamespace(search=SearchConfig(trials=8), unit="task", length=3)
    search = SimpleNamespace(halving={"": halving}, schedule=lambda: 3)
    watcher = BracketMonitor({"": plan}, 8, 3, 2, None, search)
    segment = {"row": "", "number": 2, "run": {"label": "lora-02-ab"}}
    for name, tasks in (("a", (1,)), ("b", (1, 2, 3))):
        watcher.on_trial_start(0, [], trial(name, **segment))
        for task in tasks:
            watcher.on_trial_result(0, [], trial(name, **segment), row(task))
        watcher.on_trial_complete(0, [], trial(name, **segment))
    watcher.stopped("", 2, "lora-02-ab", 1)
    watcher.trials_ended("", 4, 8)
    watcher.trials_ended("", 8, 8)
    watcher.trials_ended("", 8, None)
    said = lines(capsys)
    assert [line[:19] for line in said[:3]] == [f"trial 2/8  task {task}/3" for task in (1, 2, 3)]
    assert said[3:] == [
        "trial 2/8  complete",
        "trial 2/8  stopped after task 1: others are better",
        "the first 4 of 8 trials ended after 0 s; about 0 s remain",
        "the first 8 of 8 trials ended after 0 s",
        "the first 8 trials ended after 0 s",
    ]
    watcher.records.finish()
    (found,) = tracker.find_runs(sweep="s")
    assert (found.run_id, found.status) == (run, "FINISHED")
    assert found.tags["ctvr.stopped"] == "halving after task 1"
    assert watcher._left() == 3


def test_memory_is_waited_for_until_it_is_there_and_no_longer(monkeypatch):
    free, slept = iter([2, 2, 4]), []
    monkeypatch.setattr(memory, "_memories", lambda: [(1000, 0), (100, 100 - next(free))])
    monkeypatch.setattr(memory.time, "sleep", slept.append)
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.99")
    memory.await_memory(2, 1000.0)
    assert len(slept) == 2
