"""The best trials and the recommended settings are compared again on validation videos, without a cluster."""

import contextlib
from dataclasses import replace

import pytest

from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps import confirm as confirm_job
from ctvr.orchestrator.sweeps.comparison import CHOICE
from ctvr.orchestrator.sweeps.confirm import candidates, confirm
from ctvr.orchestrator.sweeps.front import with_standing
from ctvr.orchestrator.sweeps.mlflow_notes import selected_run
from ctvr.orchestrator.sweeps.rerun import with_baselines
from ctvr.orchestrator.sweeps.selection import Rerun, used_seeds
from ctvr.orchestrator.sweeps.verdict import CONFIRMS, read_verdict
from ctvr.orchestrator.tables.significance import read_ranks
from ctvr.orchestrator.tracking.tracker import Tracker

SEARCH = SearchConfig(confirm=2, confirm_seeds=3)
QUERIES = [f"v{number}#0" for number in range(120)]


def experiment(rate: float, seed: int = 0) -> Experiment:
    settings = {"method": "clip4clip", "stream": "few", "evaluation.split": "val", "optim.weight_decay": rate}
    return resolve({**settings, "seed": seed}, {"data.num_frames": 4}, ["shapes"])


def searched(
    tracker: Tracker,
    gains: dict[float, float],
    search: dict[str, str] | None = None,
    costs: dict[float, float] | None = None,
) -> None:
    """Return a sweep in MLflow: weight decay of each complete trial -> its gain and its multiply-adds."""
    parent = tracker.open_sweep("s", "few", search or {})
    for rate, gain in gains.items():
        made = experiment(rate)
        run = tracker.open_run("few", f"s-{rate}", made.settings, parent, {"ctvr.presets": "shapes"})
        more = {GMACS: costs[rate]} if costs else {}
        tracker.log_history(run, {1: {GAIN: gain}, 2: {GAIN: gain, **more}})
        tracker.set_tags(run, {"ctvr.complete": "true"})


GMACS = "stream/cost/video_gmacs"
TWO = {"search.metric": f"{GAIN},{GMACS}", "search.mode": "max,min"}


def test_the_front_of_a_search_is_decided_again_over_fresh_seeds(execution, monkeypatch):
    """Weight decay 0.1 won by chance: with new seeds it is no better than 0.3, which costs less."""
    tracker, trained = execution.tracker("few"), []
    costs = {0.2: 5.0, 0.1: 4.0, 0.3: 2.0, 0.4: 6.0, 0.5: 1.0}

    def run_all(plan, runs, num_tasks, execution):
        trained.extend(run.experiment.optim.weight_decay for run in runs)
        for run in runs:
            rate, seed = run.experiment.optim.weight_decay, run.experiment.run.seed
            name = f"{plan.sweep}-{run.label}"
            tags = {**plan.tags, **run.tags, "ctvr.trial": name, "ctvr.presets": "shapes", "ctvr.complete": "true"}
            run_id = tracker.open_run("few", name, run.experiment.settings, plan.parent, tags)
            gain = {0.2: 5.0, 0.1: 6.5, 0.3: 7.0, 0.5: 1.0}[rate] + 0.1 * (seed % 3)
            tracker.log_history(run_id, {2: {GAIN: gain, GMACS: costs[rate]}})
        return 0

    monkeypatch.setattr(confirm_job, "run_all", run_all)
    monkeypatch.setattr(confirm_job, "ray_cluster", lambda execution: contextlib.nullcontext(execution))
    searched(tracker, {0.2: 5.0, 0.1: 9.0, 0.3: 7.0, 0.4: 8.0, 0.5: 2.0}, TWO, costs)
    search = replace(SEARCH, metric=TWO["search.metric"], mode="max,min", confirm=8)
    listed = candidates(tracker, "s", experiment(0.2), search)
    assert [each.name for each in listed] == ["recommended", "s-0.1", "s-0.5", "s-0.3"]  # 0.4 is dominated by 0.1
    assert [each.name for each in candidates(tracker, "s", experiment(0.2), replace(search, confirm=1))] == [
        "recommended",
        "s-0.1",
    ]
    made = confirm("s", listed, 2, execution, tracker, search, "again")["s"]
    assert set(trained) == {0.2, 0.1, 0.3, 0.5}
    assert [(member.name, member.dominated_by, member.is_significant) for member in made.members] == [
        ("s-0.3", "", True),
        ("s-0.1", "s-0.3", True),
        ("recommended", "s-0.3", True),
        ("s-0.5", "", True),
    ]
    lines = made.text.splitlines()
    assert lines[0].split() == ["confirmed", "front", "gain", "gmacs", "on", "the", "front"]
    assert lines[1].split() == ["s-0.3", "7.1", "±", "0.1", "2", "yes"]
    assert lines[2].endswith("no: s-0.3 is better")
    assert lines[-1] == "2 of 3 trials remain on the front: means over 3 new seeds on validation videos"
    assert read_verdict(tracker, "s") == made
    rule, out = (TWO["search.metric"], TWO["search.mode"]), "not on the Pareto front of the search"
    shown = [with_standing(tracker.find_runs(sweep="s"), rule, verdict) for verdict in (made, None)]
    of_table, unconfirmed = ({run.name: run.tags["ctvr.note"] for run in runs} for runs in shown)
    assert of_table["s-0.3"] == of_table["s-0.5"] == "on the confirmed front of the search"
    assert of_table["s-0.1"] == "not on the confirmed front of the search: s-0.3 is better"
    assert of_table["s-0.2"] == of_table["s-0.4"] == unconfirmed["s-0.4"] == out
    assert unconfirmed["s-0.1"] == "on the Pareto front of the search, not confirmed"
    assert {run.tags["ctvr.columns"] for run in shown[0]} == {"gmacs"}

    trials, confirmation = tracker.find_runs(sweep="s"), tracker.find_runs(tags={CONFIRMS: "s"})
    runs = with_baselines([], trials[:1], trials, TWO["search.metric"], 2, 1, made, confirmation)
    assert [(run.tags[CHOICE], run.experiment.optim.weight_decay, run.experiment.run.seed) for run in runs] == [
        (choice, rate, seed)
        for choice, rate in (("front, 0.3", 0.3), ("recommended", 0.2), ("front, 0.5", 0.5))
        for seed in (1, 2)
    ]
    assert {run.tags["ctvr.columns"] for run in runs} == {"gmacs"}
    assert "not on the confirmed front of the search: s-0.3 is better" in runs[2].tags["ctvr.note"]

    (run,) = with_baselines([], trials[:1], trials, TWO["search.metric"], 1, 1)  # nothing was confirmed
    assert run.tags[CHOICE] == f"front, {trials[0].name[2:]}"
    assert (run.tags["ctvr.note"], run.tags["ctvr.columns"]) == (unconfirmed["s-0.1"], "gmacs")
    assert selected_run([replace(trials[0], tags={**trials[0].tags, **run.tags})]) is None  # none becomes best-STREAM


def finish(plan, runs: list[Rerun], tracker: Tracker) -> None:
    """Finish the runs as if they were trained: weight decay 0.3 finds twice as many queries as the others, with any
    seed.
    """
    for run in runs:
        name = f"{plan.sweep}-{run.label}"
        tags = {**plan.tags, **run.tags, "ctvr.trial": name, "ctvr.presets": "shapes", "ctvr.complete": "true"}
        run_id = tracker.open_run("few", name, run.experiment.settings, plan.parent, tags)
        share = 0.6 if run.experiment.optim.weight_decay == 0.3 else 0.3
        moved = int(len(QUERIES) * share) + run.experiment.run.seed % 3
        ranks = [1.0 if number < moved else 2.0 for number in range(len(QUERIES))]
        tracker.log_json(run_id, "ranks.json", {"query ids": QUERIES, "ranks": ranks, "tasks": [0] * len(QUERIES)})


@pytest.mark.slow
def test_challenger_replaces_the_recommended_settings(execution, monkeypatch):
    tracker, trained = execution.tracker("few"), []

    def run_all(plan, runs, num_tasks, execution):
        trained.append([(run.experiment.optim.weight_decay, run.experiment.run.seed) for run in runs])
        assert (num_tasks, plan.tags) == (2, {"ctvr.role": "confirmation"})
        assert {run.experiment.evaluation.split for run in runs} == {"val"}
        finish(plan, runs, tracker)
        return 0

    monkeypatch.setattr(confirm_job, "run_all", run_all)
    monkeypatch.setattr(confirm_job, "ray_cluster", lambda execution: contextlib.nullcontext(execution))
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


def test_nothing_is_confirmed_without_a_complete_challenger(execution):
    tracker = execution.tracker("few")
    searched(tracker, {0.2: 5.0})
    assert candidates(tracker, "s", experiment(0.2), SEARCH) == []
    assert confirm("s", [], 2, execution, tracker, SEARCH, "again") == {}
    assert read_verdict(tracker, "s") is None
