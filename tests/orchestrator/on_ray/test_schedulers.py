"""Schedulers that depend on timing: each report reaches them once, and their errors are one line."""

from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from ctvr.orchestrator.config import build
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.halving_searcher import HalvingSearcher
from ctvr.orchestrator.on_ray.journal import Journal
from ctvr.orchestrator.on_ray.plan import GAIN, TIMING, SearchConfig, TrialPlan
from ctvr.orchestrator.on_ray.schedulers import TimingScheduler
from ctvr.orchestrator.on_ray.search_time import Points
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving
from tests.refusing import refuses

CLASSES = {
    "asha": ASHAScheduler,
    "hyperband": HyperBandScheduler,
    "median_stopping": MedianStoppingRule,
    "bohb": HyperBandForBOHB,
}
TASKS = 5


class Second(TrialScheduler):
    """Stops trials after their second task."""

    def __init__(self, time_attr: str, mode: str) -> None:
        super().__init__()
        self.given, self.seen = (time_attr, mode), list[tuple[str, int]]()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        raise ZeroDivisionError("its own mistake")

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        self.seen.append((trial.trial_id, result["task"]))
        return self.STOP if result["task"] == 2 else self.CONTINUE


class Population(PopulationBasedTraining):
    def __init__(self, metric: str, mode: str) -> None:
        super().__init__(metric=metric, mode=mode, hyperparam_mutations={"x": [1, 2]})


@pytest.fixture
def _of_a_package(monkeypatch):
    names = ("Second", "Population", "GAIN", "none", "asha")
    points = [EntryPoint(name, f"{__name__}:{name}", "ctvr.schedulers") for name in names]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "ctvr.schedulers" else [])


def scheduler(name: str, **search: Any) -> TimingScheduler:
    return TimingScheduler(SearchConfig(scheduler=name, **search), "task", TASKS)


def report(task: int, value: float = 0.0) -> dict[str, Any]:
    return {"task": task, GAIN: value}


def trial(name: str) -> SimpleNamespace:
    return SimpleNamespace(trial_id=name)


@pytest.mark.parametrize("name", CLASSES)
def test_a_scheduler_of_ray_tune_gets_the_settings_of_the_search(name):
    made = scheduler(name, grace_tasks=2, reduction_factor=3)
    inner = made._inner
    assert type(inner) is CLASSES[name]
    assert (inner._metric, inner._mode, inner._time_attr) == (GAIN, "max", "task")
    assert made.set_search_properties(None, None)
    assert made.metric is None  # else Tune would end a search at a report without it
    assert getattr(inner, "_max_t", getattr(inner, "_max_t_attr", TASKS)) == TASKS
    assert getattr(inner, "_reduction_factor", getattr(inner, "_eta", 3)) == 3
    assert getattr(inner, "_grace_period", 2) == 2
    assert not getattr(inner, "_stop_last_trials", False)  # HyperBand's brackets may end before the last task


@pytest.mark.usefixtures("_of_a_package")
def test_each_report_reaches_a_scheduler_once_and_the_last_one_never():
    made = scheduler("Second", mode="min")
    assert made._inner.given == ("task", "min")
    tasks = (1, 1, 2, 1, 2, 3, 5)  # started again after tasks 1 and 2
    decided = [made.on_trial_result(None, trial("a"), report(task)) for task in tasks]
    assert decided == ["CONTINUE", "CONTINUE", "STOP", *["CONTINUE"] * 4]
    assert made.on_trial_result(None, trial("b"), {"task": 1}) == "CONTINUE"
    assert made._inner.seen == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.usefixtures("_of_a_package")
def test_errors_of_a_packages_scheduler_are_one_line_and_ours_cannot_be_replaced():
    assert type(scheduler("asha")._inner) is ASHAScheduler
    assert not SearchConfig(scheduler="none").depends_on_timing
    made = scheduler("Second")
    with refuses("search.scheduler=Second", "ZeroDivisionError", "mistake"):
        made.on_trial_add(None, trial("a"))
    assert isinstance(made.error, ConfigError)  # Tune replaces it by its own error
    with refuses("search.scheduler=GAIN", "TypeError"):
        scheduler("GAIN")
    with refuses("search.scheduler=Population", "asha"):
        scheduler("Population")


def test_a_scheduler_that_depends_on_timing_refuses_groups_and_several_objectives():
    assert SearchConfig(trials=64, scheduler="asha").searcher == "tpe"
    for wrong in ({"searcher": "grouped_tpe"}, {"metric": "a,b", "mode": "max,max"}):
        with refuses("asha", where="search"):
            build(SearchConfig, {"scheduler": "asha", **wrong}, "search", dotted=False)


def search(journal: Journal | None = None, name: str = "asha") -> HalvingSearcher:
    made = SuccessiveHalving(Points(), SearchConfig(trials=3, scheduler=name), TASKS, dict, journal)
    return HalvingSearcher({"": made}, {"": TrialPlan("s", "/x", "", "", None, "/x", {"method": "lora"})})


def test_stopped_trials_stay_stopped_when_the_search_is_resumed(tmp_path):
    file = tmp_path / "journal.json"
    searcher = search(Journal(file, "code"))
    for number in "abc":
        assert searcher.suggest(number)["run"]["tags"][TIMING] == "asha"
    for task in range(1, TASKS + 1):
        searcher.on_trial_result("a", report(task))
    searcher.on_trial_complete("a", report(TASKS))
    searcher.on_trial_result("b", report(1))
    searcher.on_trial_result("b", report(2))
    searcher.on_trial_complete("b")  # paused when Tune stopped it: no result
    searcher.on_trial_result("c", report(1))  # interrupted

    again = search(Journal(file, "code"))
    resumed = again.suggest("d")
    assert (resumed["number"], again.suggest("e")) == (3, None)  # the third trial alone runs
    again.on_trial_complete("d", error=True)
    assert again.suggest("f") == "FINISHED"
    outcome = again.outcome("", 0.0)
    assert (outcome.complete, outcome.stopped, outcome.failed, outcome.unfinished) == (1, 1, 1, 0)
    first, second, third = again.halving[""].trials
    assert (first.stopped, second.stopped, third.stopped) == (0, 2, 0)


def test_a_search_by_halving_decides_its_stops_again_from_results(tmp_path):
    file = tmp_path / "journal.json"
    searcher = search(Journal(file, "code"), "halving")
    searcher.suggest("a")
    searcher.on_trial_result("a", report(1))
    first = searcher.halving[""].trials[0]
    first.stopped = 1
    searcher.halving[""].journal.write("", first)
    again = search(Journal(Path(file), "code"), "halving")
    again.schedule()
    assert again.halving[""].trials[0].stopped == 0
    assert replace(again.halving[""].search, scheduler="asha").depends_on_timing
