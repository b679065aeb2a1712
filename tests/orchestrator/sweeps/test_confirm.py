"""The best trials and the recommended settings again, on validation videos: without a cluster."""

import contextlib
from dataclasses import replace

import pytest

from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig
from ctvr.orchestrator.sweeps import confirm as confirm_job
from ctvr.orchestrator.sweeps.comparison import CHOICE
from ctvr.orchestrator.sweeps.confirm import CONFIRMS, candidates, confirm, read_verdict
from ctvr.orchestrator.sweeps.rerun import with_baselines
from ctvr.orchestrator.sweeps.selection import Rerun, used_seeds
from ctvr.orchestrator.tables.significance import read_ranks
from ctvr.orchestrator.tracking.tracker import Tracker

SEARCH = SearchConfig(confirm=2, confirm_seeds=3)
QUERIES = [f"v{number}#0" for number in range(120)]


def experiment(rate: float, seed: int = 0) -> Experiment:
    settings = {"method": "clip4clip", "stream": "few", "evaluation.split": "val", "optim.weight_decay": rate}
    return resolve({**settings, "seed": seed}, {"data.num_frames": 4}, ["shapes"])


def searched(tracker: Tracker, gains: dict[float, float]) -> None:
    """A sweep in MLflow: weight decay of each complete trial -> its gain."""
    parent = tracker.open_sweep("s", "few", {})
    for rate, gain in gains.items():
        made = experiment(rate)
        run = tracker.open_run("few", f"s-{rate}", made.settings, parent, {"ctvr.presets": "shapes"})
        tracker.log_history(run, {1: {GAIN: gain}, 2: {GAIN: gain}})
        tracker.set_tags(run, {"ctvr.complete": "true"})


def finish(plan, runs: list[Rerun], tracker: Tracker) -> None:
    """As if they had been trained: weight decay 0.3 finds twice as many queries as the others, with any seed."""
    for run in runs:
        name = f"{plan.sweep}-{run.label}"
        tags = {**plan.tags, **run.tags, "ctvr.trial": name, "ctvr.presets": "shapes", "ctvr.complete": "true"}
        run_id = tracker.open_run("few", name, run.experiment.settings, plan.parent, tags)
        share = 0.6 if run.experiment.optim.weight_decay == 0.3 else 0.3
        moved = int(len(QUERIES) * share) + run.experiment.run.seed % 3
        ranks = [1.0 if number < moved else 2.0 for number in range(len(QUERIES))]
        tracker.log_json(run_id, "ranks.json", {"query ids": QUERIES, "ranks": ranks, "tasks": [0] * len(QUERIES)})


def test_a_challenger_is_run_beside_the_recommended_settings_and_takes_their_place(execution, monkeypatch):
    tracker, trained = execution.tracker("few"), []

    def run_all(plan, runs, num_tasks, execution):
        trained.append([(run.experiment.optim.weight_decay, run.experiment.run.seed) for run in runs])
        assert (num_tasks, plan.tags) == (2, {"ctvr.role": "confirmation"})
        assert {run.experiment.evaluation.split for run in runs} == {"val"}
        finish(plan, runs, tracker)
        return 0

    monkeypatch.setattr(confirm_job, "run_all", run_all)
    monkeypatch.setattr(confirm_job, "ray_cluster", lambda execution, tracker: contextlib.nullcontext(execution))
    searched(tracker, {0.2: 5.0, 0.1: 9.0, 0.3: 7.0, 0.4: 1.0})
    recommended = experiment(0.2)
    listed = candidates(tracker, "s", recommended, SEARCH)
    assert [(each.name, each.experiment.optim.weight_decay) for each in listed] == [
        ("recommended", 0.2),
        ("s-0.1", 0.1),
        ("s-0.3", 0.3),
    ]
    assert candidates(tracker, "s", recommended, replace(SEARCH, confirm=1)) == listed[:2]

    made = confirm("s", listed, 2, execution, tracker, SEARCH, "again")["s"]
    assert trained == [[(rate, seed) for rate in (0.2, 0.1, 0.3) for seed in (1001, 1002, 1003)]]
    assert (made.trial, made.is_confirmed, made.challengers, made.seeds) == ("s-0.3", True, 2, 3)
    assert made.against.value == pytest.approx(30, abs=2)

    # Resumed, nothing is trained; and everybody reads the same verdict from MLflow
    assert confirm("s", listed, 2, execution, tracker, SEARCH, "again")["s"] == made
    assert len(trained) == 1
    assert read_verdict(tracker, "s") == made

    # The rerun has both rows, over seeds that neither a trial nor the confirmation had
    trials, confirmation = tracker.find_runs(sweep="s"), tracker.find_runs(tags={CONFIRMS: "s"})
    best = sorted(trials, key=lambda run: -run.metrics[GAIN][-1][1])[:1]
    runs = with_baselines([], best, trials, GAIN, 3, 1, made, confirmation)
    assert [(run.tags[CHOICE], run.experiment.optim.weight_decay, run.experiment.run.seed) for run in runs] == [
        (choice, rate, seed) for choice, rate in (("recommended", 0.2), ("searched", 0.3)) for seed in (1, 2, 3)
    ]
    assert {run.experiment.evaluation.split for run in runs} == {"test"}
    again = {run.experiment.run.seed for run in runs}
    assert not again & (used_seeds(trials) | used_seeds(confirmation))
    crowded = with_baselines([], best, trials, GAIN, 1002, 1, made, confirmation)
    assert not {run.experiment.run.seed for run in crowded} & (used_seeds(trials) | used_seeds(confirmation))
    assert read_ranks(tracker, confirmation[0].run_id) is not None


def test_where_the_recommended_settings_alone_are_complete_nothing_is_confirmed(execution):
    tracker = execution.tracker("few")
    searched(tracker, {0.2: 5.0})
    assert candidates(tracker, "s", experiment(0.2), SEARCH) == []
    assert confirm("s", [], 2, execution, tracker, SEARCH, "again") == {}
    assert read_verdict(tracker, "s") is None
