"""A search that another version began is refused in one line, before Ray starts."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.errors import ConfigError
from orchestrator.jobs.deployment import Deployment
from orchestrator.jobs.resume import resume
from orchestrator.on_ray.plan import TrialPlan, write_plan
from orchestrator.on_ray.state import check_state


@pytest.fixture
def plan(tmp_path: Path) -> TrialPlan:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return TrialPlan("s", str(tmp_path), "", uri, None, str(tmp_path / "sweeps" / "s"), {"method": "lora"})


@pytest.fixture
def state(plan: TrialPlan) -> Path:
    file = Path(plan.storage) / "tune" / "tuner.pkl"
    file.parent.mkdir(parents=True)
    return file


def test_a_state_whose_searcher_has_moved_is_refused_in_one_line(plan, state, tmp_path, monkeypatch):
    module = ModuleType("orchestrator.ray_search")
    exec("class Listed: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("orchestrator.ray_search", module, raising=False)
    state.write_bytes(pickle.dumps(module.Listed()))
    check_state(plan)  # as long as its file is there
    monkeypatch.delitem(sys.modules, module.__name__)
    where = Deployment(runs=tmp_path)
    write_plan(plan, where.folder("s"))
    with pytest.raises(
        ConfigError, match=r"^sweep s: what Ray Tune kept .*No module named 'orchestrator.ray_search'.* new"
    ):
        resume("s", where)


@pytest.mark.parametrize("content", [b"", b"no pickle"])
def test_a_state_that_is_damaged_is_refused_and_none_is_not(plan, state, content):
    check_state(plan)
    state.write_bytes(content)
    with pytest.raises(ConfigError, match="sweep s: what Ray Tune kept of it cannot be read by this version") as caught:
        check_state(plan)
    assert "\n" not in str(caught.value)
