"""What the driver of a sweep says, keeps and resumes: without a cluster. With one: test_ray_sweeps.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import cloudpickle
from ray.exceptions import RayTaskError

from orchestrator.config import ConfigError
from orchestrator.ray_search import GAIN
from orchestrator.ray_train import TrialFailed, TrialPlan, run_name
from orchestrator.ray_tune import (
    Watcher,
    _keep_secrets,
    _outcome,
    can_resume,
    duration,
    label_of,
    read_plan,
    write_plan,
)
from orchestrator.tracking import Tracker, prepare


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return TrialPlan("s", str(tmp_path), "", uri, None, str(tmp_path / "ray"), {"method": "lora"}, ("shapes",))


def trial(trial_id: str, error_file: Path | None = None, **config: object) -> SimpleNamespace:
    return SimpleNamespace(trial_id=trial_id, config=config, pickled_error_file=error_file)


def kept(error: Exception, folder: Path) -> Path:
    """An error as Tune keeps it."""
    file = folder / "error.pkl"
    file.write_bytes(cloudpickle.dumps(error))
    return file


def row(task: int, **more: float) -> dict[str, float]:
    return {"task": task, "stream/t2v/r1": 40.0, GAIN: 3.5, "stream/t2v/bwf": 1.0, "seconds": 2.0, **more}


# ---------------------------------------------------------------------------------------------- the plan


def test_a_plan_that_was_written_is_read_back(plan, tmp_path):
    plan = replace(plan, tags={"a": "b"}, settings={"method.beta": 0.5})
    write_plan(plan, tmp_path / "sweeps" / "s", request={"name": "s"}, num_tasks=5)
    assert read_plan(tmp_path / "sweeps" / "s", "s") == (plan, {"request": {"name": "s"}, "num_tasks": 5})


def test_an_unknown_sweep_names_the_nearest_one(plan, tmp_path):
    with pytest.raises(ConfigError, match="none is called 's1'. Known: none yet"):
        read_plan(tmp_path / "sweeps" / "s1", "s1")
    write_plan(plan, tmp_path / "sweeps" / "monday")
    with pytest.raises(ConfigError, match="none is called 'mondy'. Did you mean 'monday'"):
        read_plan(tmp_path / "sweeps" / "mondy", "mondy")


@pytest.mark.parametrize("text", ["", "{}", '{"plan": {"sweep": "s"}}', '{"plan": {"unknown": 1}}', "[]"])
def test_a_plan_of_another_version_is_refused(tmp_path, text):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "plan.json").write_text(text)
    with pytest.raises(ConfigError, match="no plan of this version"):
        read_plan(tmp_path / "s", "s")


def test_nothing_can_be_resumed_before_tune_wrote_its_state(plan):
    assert not can_resume(plan)
    (Path(plan.storage) / "tune").mkdir(parents=True)
    (Path(plan.storage) / "tune" / "tuner.pkl").touch()
    assert not can_resume(plan)
    (Path(plan.storage) / "tune" / "experiment_state-2026.json").touch()
    assert can_resume(plan)


def test_a_listed_run_has_the_same_name_whenever_it_is_run(plan):
    settings = {"method": "lora", "seed": 2, "data.num_frames": 4}
    label = label_of(settings)
    assert re.fullmatch(r"lora-seed2-[0-9a-f]{6}", label)
    assert label == label_of(dict(reversed(settings.items())))
    assert label != label_of({**settings, "data.num_frames": 5})
    assert run_name(plan, {"run": {"label": label}}, "x_1") == f"s-{label}"
    assert run_name(plan, {"method.lr": 1}, "x_1") == "s-lora-x_1"


# --------------------------------------------------------------------------------------------- the watcher


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in capsys.readouterr().err.splitlines()]


def test_every_finished_task_is_one_line_however_often_it_is_reported(plan, capsys):
    watcher = Watcher(plan, 4, 3, 2)
    for task in (1, 1, 2, 1, 2):
        watcher.on_trial_result(0, [], trial("a"), row(task))
    assert lines(capsys) == [
        "trial 1/4  task 1/3  R@1 40.00  (+3.50 over zero-shot)  BWF 1.00  2.0 s",
        "trial 1/4  task 2/3  R@1 40.00  (+3.50 over zero-shot)  BWF 1.00  2.0 s",
    ]


def test_a_complete_trial_says_how_long_the_rest_may_take(plan, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("orchestrator.ray_tune.time.monotonic", lambda: now[0])
    watcher = Watcher(plan, 4, 1, 2)
    for name in "ab":
        watcher.on_trial_start(0, [], trial(name))
    for name, end in (("a", 60.0), ("b", 90.0)):
        now[0] = end
        watcher.on_trial_result(0, [], trial(name), row(1))
        watcher.on_trial_complete(0, [], trial(name))
    said = [line for line in lines(capsys) if "complete" in line]
    assert said == [
        "trial 1/4  complete after 60 s; 3 to go, at most 2 min",
        "trial 2/4  complete after 90 s; 2 to go, at most 90 s",
    ]


def test_durations_are_said_as_a_person_would():
    assert [duration(s) for s in (5.4, 99, 130, 5400, 7200)] == ["5 s", "99 s", "2 min", "90 min", "2.0 h"]


def test_a_stopped_and_a_failed_trial_are_closed_in_mlflow(plan, capsys):
    prepare(plan.tracking_uri, Path(plan.root), "stream")
    tracker = Tracker(plan.tracking_uri, Path(plan.root))
    parent = tracker.open_sweep("s", "stream", {})
    ids = {}
    for trial_id in ("a_0", "a_1", "a_10"):
        tags = {"ctvr.trial": run_name(plan, {}, trial_id)}
        ids[trial_id] = tracker.open_run("stream", trial_id, {}, parent, tags)
    watcher = Watcher(plan, 3, 3, 2)
    watcher.on_trial_result(0, [], trial("a_1"), row(1))
    watcher.on_trial_complete(0, [], trial("a_1"))
    watcher.on_trial_error(0, [], trial("a_0", kept(TrialFailed("data.x: is wrong."), Path(plan.root))))
    runs = {run.run_id: run for run in Tracker(plan.tracking_uri, Path(plan.root)).find_runs(sweep="s")}
    assert (runs[ids["a_1"]].status, runs[ids["a_1"]].tags["ctvr.stopped"]) == ("FINISHED", "asha after task 1")
    assert (runs[ids["a_0"]].status, runs[ids["a_0"]].tags["ctvr.error"]) == ("FAILED", "data.x: is wrong.")
    assert runs[ids["a_10"]].status == "RUNNING"
    assert lines(capsys)[1:] == [
        "trial 1/3  stopped after task 1: others do better",
        "trial 2/3  failed: data.x: is wrong.",
    ]


def test_a_tracking_server_that_is_away_does_not_end_the_sweep(plan):
    away = replace(plan, tracking_uri="http://127.0.0.1:9")
    watcher = Watcher(away, 1, 3, 1)
    watcher.on_trial_result(0, [], trial("a"), row(1))
    watcher.on_trial_complete(0, [], trial("a"))


def test_a_resumed_watcher_goes_on_counting(plan, capsys):
    first, second = Watcher(plan, 2, 3, 1), Watcher(plan, 2, 3, 1)
    first.on_trial_result(0, [], trial("a"), row(1))
    second.set_state(first.get_state())
    second.on_trial_result(0, [], trial("a"), row(1))
    second.on_trial_result(0, [], trial("b"), row(1))
    assert [line[:9] for line in lines(capsys)] == ["trial 1/2", "trial 2/2"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TrialFailed("optim.lr: is too high."), "optim.lr: is too high."),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (RayTaskError("f", "Traceback", TrialFailed("why")), "why"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_failure_is_said_in_one_line(plan, capsys, tmp_path, error, reason):
    Watcher(plan, 1, 1, 1).on_trial_error(0, [], trial("a", kept(error, tmp_path)))
    Watcher(plan, 1, 1, 1).on_trial_error(0, [], trial("a"))
    assert lines(capsys) == [f"trial 1/1  failed: {reason}", "trial 1/1  failed: no reason was recorded"]


def test_trials_that_never_began_are_unfinished():
    def ended(status: str, task: int) -> SimpleNamespace:
        return SimpleNamespace(status=status, last_result={"task": task})

    trials = [ended("TERMINATED", 3), ended("TERMINATED", 1), ended("ERROR", 2), ended("PENDING", 0)]
    found = SimpleNamespace(_experiment_analysis=SimpleNamespace(trials=trials))
    outcome = _outcome(found, 6, 3, 1.0)
    assert (outcome.complete, outcome.stopped, outcome.failed, outcome.unfinished) == (1, 1, 1, 3)
    assert outcome.is_interrupted


def test_tune_hands_no_keys_on_in_the_runtime_environment_of_trials(monkeypatch):
    from ray.tune.execution import class_cache

    handed_on = set(class_cache.ENV_VARS_TO_PROPAGATE)
    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", handed_on | {"AWS_SECRET_ACCESS_KEY"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    given: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(class_cache.ray, "remote", lambda runtime_env: given.update(runtime_env) or (lambda cls: cls))
    class_cache._ActorClassCache().get(object)
    assert given["env_vars"]["AWS_SECRET_ACCESS_KEY"] == "made-up"  # what Tune does by itself
    _keep_secrets()
    class_cache._ActorClassCache().get(object)
    assert "AWS_SECRET_ACCESS_KEY" not in given["env_vars"]
    assert given["env_vars"]["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "0.2"
