"""Winners, baselines and seeds of a rerun, without a cluster. With one: test_ray_sweeps.py."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ctvr.methods import trust
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.run.execute import has_training
from ctvr.orchestrator.on_ray.plan import GAIN, NUMBER, TIMING, SearchConfig, label_of
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.sweeps import rerun as rerun_job
from ctvr.orchestrator.sweeps.comparison import experiment_of
from ctvr.orchestrator.sweeps.confirm import Candidate, candidates
from ctvr.orchestrator.sweeps.plan_text import describe_best
from ctvr.orchestrator.sweeps.rerun import (
    OVERRIDES,
    baseline,
    baseline_rows,
    rerun,
    searched_tags,
    shared_overrides,
    with_baselines,
)
from ctvr.orchestrator.sweeps.selection import (
    Rerun,
    best_trials,
    expand_seeds,
    expand_task_orders,
    have_no_winner,
    incomplete_runs,
)
from ctvr.orchestrator.tables.footnotes import marks_of
from tests.refusing import refused


def finished(execution: ExecutionConfig, few: str, gains: dict[str, float | None], **settings: object) -> list[str]:
    """Return a sweep in MLflow whose trials ended with these gains; None: not complete."""
    tracker = execution.tracker("few")
    parent = tracker.open_sweep("s", "few", {})
    stream = load_stream(few, execution.runs)
    for name, gain in gains.items():
        made = resolve(
            {"method": "clip4clip", "stream": few, "evaluation.split": "val", **settings}, stream.settings, ["shapes"]
        )
        run = tracker.open_run("few", name, made.settings, parent, {"ctvr.presets": "shapes"})
        if gain is not None:
            tracker.log_task(run, 2, {GAIN: gain})
            tracker.set_tags(run, {"ctvr.complete": "true"})
        else:
            tracker.log_task(run, 1, {GAIN: 99.0})
    return list(gains)


def test_winners_are_the_best_of_the_complete_trials(few, execution):
    finished(execution, few, {"a": 1.0, "b": 3.0, "stopped": None, "c": float("nan"), "d": 2.0})
    assert [run.name for run in best_trials(execution.tracker(), "s", 4)] == ["b", "d", "a", "c"]


def test_without_a_complete_trial_there_is_no_winner(few, execution):
    finished(execution, few, {"a": None})
    refused(lambda: best_trials(execution.tracker(), "s", 1), "--resume")
    refused(lambda: best_trials(execution.tracker(), "t", 1), "'t'", where="sweep")


def test_reruns_are_on_test_videos_over_fresh_seeds(few, execution):
    finished(execution, few, {"a": 1.0}, **{"method.lr": 3e-6, "optim.betas": "0.8,0.9", "seed": 0})
    stream, winners = load_stream(few, execution.runs), best_trials(execution.tracker(), "s", 1)
    words, given = ["zero_shot", "clip4clip:paper"], {"optim.epochs": "1"}
    baselines = [baseline(word, stream, few, given, 1) for word in words]
    found = with_baselines(baselines, winners, winners, GAIN, 2, 1)
    runs = [each.experiment for each in found]
    assert [(run.run.method, run.run.seed) for run in runs] == [
        ("zero_shot", 1),  # which has nothing to train and so no second seed
        ("clip4clip", 1),
        ("clip4clip", 2),
        ("clip4clip", 1),
        ("clip4clip", 2),
    ]
    assert {run.evaluation.split for run in runs} == {"test"}
    assert [run.method.lr for run in runs[1:]] == [1e-6, 1e-6, 3e-6, 3e-6]
    assert runs[-1].optim.betas == (0.8, 0.9)
    assert [run.presets for run in runs] == [(), ("paper",), ("paper",), ("shapes",), ("shapes",)]
    assert [run.optim.epochs for run in runs] == [1, 1, 1, 2, 2]  # the winner keeps its own
    assert {run.data.num_frames for run in runs} == {4}
    assert [each.tags["ctvr.searched"] for each in found] == ["zero_shot:0", *["clip4clip:0"] * 2, *["clip4clip:1"] * 2]
    assert len({each.label for each in found}) == 5


def test_a_winner_that_equals_a_baseline_runs_once(few, execution):
    finished(execution, few, {"a": 1.0, "b": 0.5})
    stream, winners = load_stream(few, execution.runs), best_trials(execution.tracker(), "s", 2)
    same = baseline("clip4clip:shapes", stream, few, {}, 1)
    runs = with_baselines([same], winners, winners, GAIN, 3, 1)
    assert [run.tags["ctvr.searched"] for run in runs] == ["clip4clip:2"] * 3  # and counts as searched


def test_a_control_has_a_name_different_from_its_method(few, execution):
    finished(execution, few, {"a": 1.0})
    stream, winners = load_stream(few, execution.runs), best_trials(execution.tracker(), "s", 1)
    words = ["framefusion_moe", "framefusion_moe:train-references", "bmu_moco_local"]
    made = [baseline(word, stream, few, {}, 1) for word in words]
    runs = with_baselines(made, winners, winners, GAIN, 1, 1)
    assert [run.tags.get("ctvr.row") for run in runs] == [None, "framefusion_moe:train-references", None, None]


@pytest.mark.parametrize("given", [{}, {"optim.epochs": "3"}])
def test_a_control_takes_the_steps_pairs_and_negatives_of_replay(few, execution, given):
    stream = load_stream(few, execution.runs)
    plain, replayed, control = (
        baseline(word, stream, few, given, 1) for word in ("clip4clip", "er_ring", "clip4clip@er_ring")
    )
    epochs, batch = (2 * size for size in (plain.experiment.optim.epochs, plain.experiment.data.batch_size))
    assert (control.experiment.optim.epochs, control.experiment.data.batch_size) == (epochs, batch)
    assert replayed.experiment.method.ratio == 1.0
    assert control.experiment.run.method == "clip4clip"
    assert control.tags["ctvr.row"] == "clip4clip at er_ring's compute"
    assert "without replay" in control.tags["ctvr.note"]


RERUNS: dict[str, Callable[[str, ExecutionConfig], object]] = {
    "lwf is not a whole multiple": lambda few, place: control("clip4clip@lwf", few, place),
    "no method called 'er_rnig'. Did you mean er_ring": lambda few, place: control("clip4clip@er_rnig", few, place),
    "sweep: 'x' does not exist": lambda few, place: rerun("x", place),
    "--top: must be >= 1 (got 0)": lambda few, place: rerun("x", place, top=0),
    "--seeds: must be >= 1 (got 0)": lambda few, place: rerun("x", place, seeds=0),
    "--task-orders: must be >= 1, got 0": lambda few, place: expand_task_orders([], 0),
}


def control(word: str, few: str, execution: ExecutionConfig) -> object:
    return baseline(word, load_stream(few, execution.runs), few, {}, 1)


@pytest.mark.wording
@pytest.mark.parametrize("said", RERUNS)
def test_what_cannot_be_run_again_is_refused_in_one_line(few, execution, said):
    execution.tracker()
    refused(lambda: RERUNS[said](few, execution), said)


def test_winners_are_the_best_by_what_was_searched_for(few, execution):
    tracker = execution.tracker("few")
    parent = tracker.open_sweep("m", "few", {"search.metric": "stream/t2v/bwf", "search.mode": "min"})
    for name, lost in {"a": 2.0, "b": -1.0, "c": float("nan")}.items():
        run = tracker.open_run("few", name, {}, parent, {"ctvr.complete": "true"})
        tracker.log_task(run, 1, {"stream/t2v/bwf": lost, GAIN: lost})
    assert [run.name for run in best_trials(tracker, "m", 3)] == ["b", "a", "c"]


def test_runs_of_a_winner_record_its_selection_and_the_search_time(few, execution):
    tracker = execution.tracker("few")
    parent = tracker.open_sweep("s", "few", {})
    for name, seconds in (("a", 3.0), ("b", 4.5)):
        run = tracker.open_run("few", name, {}, parent, {"ctvr.split": "val"})
        tracker.log_history(run, {1: {"cost/seconds_task": seconds}, 2: {"cost/seconds_task": 1.0}})
    assert searched_tags("lora", tracker.find_runs(sweep="s"), GAIN) == {
        "ctvr.searched": "lora:2",
        "ctvr.search_seconds": "9.5",
        "ctvr.selection": "R@1 gain over zero-shot on val videos",
    }
    tracker.set_tags(run, {TIMING: "asha"})
    tags = searched_tags("lora", tracker.find_runs(sweep="s"), GAIN)
    assert tags["ctvr.selection"].endswith("val videos; scheduler asha, which depends on timing")


def test_settings_of_other_methods_do_not_reach_the_baselines():
    given = {
        "compile": "true",
        "method.lr": 1,
        "base.lr": 2,
        "seed": 3,
        "optim.epochs": 4,
        "data.num_frames": 5,
        "backbone.name": "x",
    }
    assert shared_overrides(given) == {
        "compile": "true",
        "optim.epochs": 4,
        "data.num_frames": 5,
        "backbone.name": "x",
    }


def test_baselines_by_comma_keep_the_presets_of_a_row_together():
    words = ["camoe:original", "dsl", "lwf:original", "framefusion_moe:no-ffa", "no-tame", "clip4clip"]
    rows = ["camoe:original,dsl", "lwf:original", "framefusion_moe:no-ffa,no-tame", "clip4clip"]
    assert baseline_rows(words) == rows
    assert baseline_rows(rows) == rows
    assert baseline_rows(["dsl", "camoe:original"]) == ["dsl", "camoe:original"]


def test_only_what_trains_depends_on_its_seed():
    made = {"stream": "s", "backbone.name": "tiny-clip", "backbone.weights": "shipped"}
    assert not has_training(resolve({"method": "zero_shot", **made}))
    assert has_training(resolve({"method": "clip4clip", **made}))
    assert not has_training(resolve({"method": "clip4clip", "optim.epochs": 0, **made}))
    assert not has_training(resolve({"method": "framefusion_moe", "optim.epochs": 0, **made}))


@pytest.mark.parametrize("name", ["tests.analytic_methods:RanPac", "tests.analytic_methods:Ridge"])
def test_what_learns_at_the_end_of_a_task_depends_on_its_seed_and_gets_every_seed(name, few):
    trust([name])
    made = {"stream": few, "backbone.name": "tiny-clip", "backbone.weights": "shipped"}
    experiments = [resolve({"method": name, "optim.epochs": epochs, **made}) for epochs in (0, 3)]
    experiments += [resolve({"method": "lwf", "method.base": name, **made})]
    for experiment in experiments:
        assert has_training(experiment)
        assert len(Candidate("s", "a", experiment).runs((5, 6, 7), 1)) == 3
        assert len(expand_seeds([Rerun(experiment)], 3, 1)) == 3
    assert not experiments[1].trains_by_gradients
    assert experiments[2].trains_by_gradients


def test_complete_runs_of_an_interrupted_rerun_are_not_run_again(few, execution):
    finished(execution, few, {"a": 1.0})
    tracker = execution.tracker()
    runs = expand_seeds([Rerun(experiment_of(run)) for run in best_trials(tracker, "s", 1)], 2, 1)
    parent = tracker.open_sweep("final", "few", {})
    tags = {"ctvr.trial": f"final-{label_of(runs[0].experiment.settings)}"}
    half = tracker.open_run("few", "x", {}, parent, tags)
    assert incomplete_runs(runs, "final", tracker) == runs
    tracker.set_tags(half, {"ctvr.complete": "true"})
    assert incomplete_runs(runs, "final", tracker) == runs[1:]
    ordered = expand_task_orders(runs, 3)
    assert ordered[:2] == runs  # the stream's own order: runs that may already exist
    stream = runs[0].experiment.run.stream
    assert [run.experiment.run.stream for run in ordered[2:]] == [f"{stream}@1"] * 2 + [f"{stream}@2"] * 2
    assert [run.experiment.run.seed for run in ordered] == [run.experiment.run.seed for run in runs] * 3
    assert len({run.label for run in ordered}) == 6


def test_lists_of_mlflow_are_written_as_on_the_command_line():
    settings = {"method": "zero_shot", "stream": "shapes-5", "optim.betas": "[0.9, 0.98]", "optim.grad_clip": "None"}
    found = experiment_of(SimpleNamespace(name="a run", tags={}, settings=settings))
    assert (found.optim.betas, found.optim.grad_clip) == ((0.9, 0.98), None)


def test_a_search_whose_trials_are_all_equal_names_no_winner(few, execution):
    finished(execution, few, {"a": 2.0, "stopped": None}, **{"method.lr": 3e-6})
    finished(execution, few, {"b": 2.0}, **{"method.lr": 5e-6})
    tracker = execution.tracker()
    trials = tracker.find_runs(sweep="s")
    assert have_no_winner(trials, GAIN)
    assert not have_no_winner(trials[:1], GAIN)
    recommended = resolve({"method": "clip4clip", "stream": few}, load_stream(few, execution.runs).settings)
    assert candidates(tracker, "s", recommended, SearchConfig()) == []
    tags = searched_tags("clip4clip", trials, GAIN)
    run = replace(trials[0], tags={**trials[0].tags, **tags})
    assert any("equal results by R@1 gain" in mark and "no winner" in mark for mark in marks_of(run))
    (said,) = describe_best(SimpleNamespace(space={}), SearchConfig(), best_trials(tracker, "s", None), {})
    assert said == "no winner: all 2 complete trials have R@1 gain over zero-shot +2.00; the first one is rerun"
    finished(execution, few, {"c": 3.0}, **{"method.lr": 7e-6})
    assert not have_no_winner(tracker.find_runs(sweep="s"), GAIN)
    assert "ctvr.no_winner" not in searched_tags("clip4clip", tracker.find_runs(sweep="s"), GAIN)


def test_the_winner_of_equal_trials_does_not_depend_on_their_end(few, execution):
    finished(execution, few, {"a": 2.0}, **{"method.lr": 3e-6})
    finished(execution, few, {"b": 2.0}, **{"method.lr": 5e-6})
    (first,) = best_trials(execution.tracker(), "s", 1)
    other = replace(execution, runs=execution.runs.parent / "other")
    finished(other, few, {"b": 2.0}, **{"method.lr": 5e-6})
    finished(other, few, {"a": 2.0}, **{"method.lr": 3e-6})
    assert best_trials(other.tracker(), "s", 1)[0].name == first.name


@pytest.mark.slow
def test_the_first_suggested_of_equal_trials_wins(few, execution):
    for name, rate in (("a", 3e-6), ("b", 5e-6)):
        finished(execution, few, {name: 2.0}, **{"method.lr": rate})
    unnumbered = best_trials(
        execution.tracker(), "s", 2
    )  # in the order of their settings, so the other way round decides
    for number, run in zip(("011", "002"), unnumbered):
        execution.tracker().set_tags(run.run_id, {NUMBER: number})
    assert [run.name for run in best_trials(execution.tracker(), "s", 2)] == [run.name for run in unnumbered[::-1]]


def test_a_rerun_takes_no_seed_that_a_trial_used(few, execution):
    finished(execution, few, {"a": 1.0}, seed=2)
    trials = execution.tracker().find_runs(sweep="s")
    runs = with_baselines([], best_trials(execution.tracker(), "s", 1), trials, GAIN, 3, 1)
    assert [run.experiment.run.seed for run in runs] == [1, 3, 4]


def test_baselines_need_the_recorded_settings_of_a_sweep(few, execution, monkeypatch):
    finished(execution, few, {"a": 1.0})
    monkeypatch.setattr(rerun_job, "check_machine", lambda *arguments: None)
    found: list = []
    monkeypatch.setattr(
        rerun_job, "execute_rerun", lambda name, runs, *more: found.extend(runs) or f"the table {more[-2]}"
    )
    refused(lambda: rerun("s", execution, baselines=("zero_shot",)), "--baselines", "zero_shot")
    assert rerun("s", execution, seeds=1, direction="both") == "the table both"
    execution.tracker().open_sweep("s", "few", {}, {OVERRIDES: json.dumps({"optim.epochs": "7", "method.lr": "1"})})
    found.clear()
    rerun("s", execution, seeds=1, baselines=("clip4clip",))
    assert found[0].experiment.optim.epochs == 7
    assert found[0].experiment.method.lr != 1
