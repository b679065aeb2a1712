"""Stored plans of sweeps, without Ray."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ctvr.orchestrator.on_ray.plan import TrialPlan, join_uri, label_of, read_plan, run_name, write_plan
from tests.refusing import refuses


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return TrialPlan("s", str(tmp_path), "", uri, None, str(tmp_path / "ray"), {"method": "lora"}, ("shapes",))


def test_a_plan_that_was_written_is_read_back(plan, tmp_path):
    plan = replace(plan, tags={"a": "b"}, settings={"method.beta": 0.5})
    write_plan(plan, tmp_path / "sweeps" / "s", request={"name": "s"}, num_tasks=5)
    assert read_plan(tmp_path / "sweeps" / "s", "s") == (plan, {"request": {"name": "s"}, "num_tasks": 5})


def test_an_unknown_sweep_names_the_nearest_one(plan, tmp_path):
    with refuses("'s1'", where="sweep"):
        read_plan(tmp_path / "sweeps" / "s1", "s1")
    write_plan(plan, tmp_path / "sweeps" / "monday")
    with refuses("'mondy'", "'monday'"):
        read_plan(tmp_path / "sweeps" / "mondy", "mondy")


@pytest.mark.parametrize("text", ["", "{}", '{"plan": {"sweep": "s"}}', '{"plan": {"unknown": 1}}', "[]"])
def test_a_plan_of_another_version_is_refused(tmp_path, text):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "plan.json").write_text(text)
    with refuses("plan.json", remedy=True):
        read_plan(tmp_path / "s", "s")


def test_a_listed_run_has_the_same_name_whenever_it_is_run(plan):
    settings = {"method": "lora", "seed": 2, "data.num_frames": 4}
    label = label_of(settings)
    assert re.fullmatch(r"lora-seed2-[0-9a-f]{6}", label)
    assert label == label_of(dict(reversed(settings.items())))
    assert label != label_of({**settings, "data.num_frames": 5})
    assert run_name(plan, {"run": {"label": label}}) == f"s-{label}"


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
    assert join_uri(storage, "s") == folder
