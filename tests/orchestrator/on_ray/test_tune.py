"""What the driver of a sweep keeps and resumes: without a cluster. With one: test_ray_sweeps.py."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import ConfigError
from orchestrator.on_ray.trial import TrialPlan, below, run_name
from orchestrator.on_ray.tune import (
    ListedRun,
    _as_listed,
    _keep_secrets,
    _outcome,
    can_resume,
    label_of,
    read_plan,
    write_plan,
)


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return TrialPlan("s", str(tmp_path), "", uri, None, str(tmp_path / "ray"), {"method": "lora"}, ("shapes",))


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


@pytest.mark.parametrize(
    ("storage", "folder"),
    [
        ("/a/b", "/a/b/s"),
        ("/a/b/", "/a/b/s"),
        ("s3://bucket", "s3://bucket/s"),
        ("s3://bucket/x/", "s3://bucket/x/s"),
        (
            "s3://bucket/x?endpoint_override=10.0.0.1:9000&scheme=http",
            "s3://bucket/x/s?endpoint_override=10.0.0.1:9000&scheme=http",
        ),
    ],
)
def test_a_sweep_has_a_folder_of_its_own_below_rays_storage(storage, folder):
    assert below(storage, "s") == folder


def test_a_listed_run_survives_the_way_through_rays_configuration(plan):
    run = ListedRun("lora-seed1-abc", {"method": "lora", "optim.betas": [0.9, 0.99]}, ("shapes",), {"ctvr.note": "x"})
    assert ListedRun(**asdict(run)) == run
    made = _as_listed(plan, {"seed": 3})
    assert made == ListedRun(label_of({"method": "lora", "seed": 3}), {"seed": 3}, ("shapes",), {})
    assert label_of(run.settings, "own_name").startswith("own_name-seed0-")


def test_trials_that_never_began_and_those_that_ctrl_c_ended_are_unfinished():
    def trial(number: int, status: str, task: int) -> SimpleNamespace:
        return SimpleNamespace(trial_id=f"t{number}", status=status, last_result={"task": task})

    ends = [("TERMINATED", 3), ("TERMINATED", 1), ("TERMINATED", 2), ("ERROR", 2), ("PENDING", 0)]
    trials = [trial(number, *end) for number, end in enumerate(ends)]
    outcome = _outcome(trials, 6, 3, 1.0, ended={"t0", "t1", "t3"})  # of the end of t2 Tune told nobody
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
