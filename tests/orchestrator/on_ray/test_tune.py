"""Input of Tune from a sweep's driver, and evaluation of its output, without a cluster. With one: test_sweeps.py."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from ctvr.orchestrator.on_ray.plan import RunSpec, TrialPlan, label_of
from ctvr.orchestrator.on_ray.tune import _count_outcomes, _to_spec, can_resume, journal_path


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return TrialPlan("s", str(tmp_path), "", uri, None, str(tmp_path / "ray"), {"method": "lora"}, ("shapes",))


def test_nothing_can_be_resumed_before_there_is_a_journal(plan):
    (Path(plan.storage) / "tune").mkdir(parents=True)
    (Path(plan.storage) / "tune" / "tuner.pkl").touch()  # Tune's own is never read
    assert not can_resume(plan)
    journal_path(plan).parent.mkdir(parents=True)
    journal_path(plan).touch()
    assert can_resume(plan)


def test_a_listed_run_survives_the_way_through_rays_configuration(plan):
    run = RunSpec("lora-seed1-abc", {"method": "lora", "optim.betas": [0.9, 0.99]}, ("shapes",), {"ctvr.note": "x"})
    assert RunSpec(**asdict(run)) == run
    made = _to_spec(plan, {"seed": 3})
    assert made == RunSpec(label_of({"method": "lora", "seed": 3}), {"seed": 3}, ("shapes",), {})
    assert label_of(run.settings, "own_name").startswith("own_name-seed0-")


def test_unstarted_and_interrupted_trials_are_unfinished():
    def trial(number: int, status: str, task: int) -> SimpleNamespace:
        return SimpleNamespace(trial_id=f"t{number}", status=status, last_result={"task": task})

    ends = [("TERMINATED", 3), ("TERMINATED", 1), ("TERMINATED", 2), ("ERROR", 2), ("PENDING", 0)]
    trials = [trial(number, *end) for number, end in enumerate(ends)]
    outcome = _count_outcomes(trials, 6, 3, 1.0)
    assert (outcome.complete, outcome.stopped, outcome.failed, outcome.unfinished) == (1, 0, 1, 4)
    assert outcome.is_interrupted
