"""What a sweep and a rerun are made of, checked before anything starts. With a cluster: test_ray_sweeps.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import sweep_jobs
from orchestrator.config import ConfigError
from orchestrator.jobs import GAIN, Where
from orchestrator.ray_search import first_point
from orchestrator.ray_tune import Outcome, label_of, write_plan
from orchestrator.streams import load_stream
from orchestrator.sweep_jobs import (
    FailedRuns,
    Interrupted,
    SweepRequest,
    _as_given,
    _conclude,
    _interruptible,
    _kept_where,
    _not_complete,
    _read_request,
    _trial_plan,
    best_trials,
    common,
    plan_sweep,
    rerun,
    rerun_experiments,
    resume,
    sweep,
    trains,
)
from orchestrator.tracking import Tracker
from tests.orchestrator.conftest import write_stream


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_stream(tmp_path_factory.mktemp("few"), num_tasks=2, train=2, searched=1))


@pytest.fixture
def where(tmp_path: Path) -> Where:
    return Where(runs=tmp_path / "runs", local_cpus=2)


def request(stream: str, **more: object) -> SweepRequest:
    return SweepRequest(**{"method": "clip4clip", "stream": stream, "name": "s", "overrides": {}, **more})


# ------------------------------------------------------------------------------------------- what is asked


def test_a_sweep_chooses_on_validation_videos(few, where):
    planned = plan_sweep(request(few), where)
    assert planned.experiment.evaluation.split == "val"
    assert planned.given["evaluation.split"] == "val"
    assert planned.experiment.data.num_frames == 4  # which the stream recommends


@pytest.mark.parametrize("method", ["framefusion_moe", "structalign"])
def test_the_point_that_is_tried_first_is_the_papers_for_the_stream(method, few, where, tmp_path):
    content = json.loads(Path(few).read_text())
    actnet = tmp_path / "actnet.json"
    settings = {**content["settings"], "preset": "paper-actnet", "data.num_frames": 24}
    actnet.write_text(json.dumps({**content, "settings": settings, "videos": str(Path(few).parent / "videos")}))
    points = [
        first_point(planned.space, planned.paper)
        for planned in (plan_sweep(request(stream, method=method), where) for stream in (few, str(actnet)))
    ]
    assert [point["method.num_experts"] for point in points] == [10, 5]
    later = "method.lr" if method == "structalign" else "method.lr_text"
    assert points[0][later] < points[1][later] == 6e-6
    released = plan_sweep(request(few, method=method, presets=("released",)), where)
    assert first_point(released.space, released.paper)[later] == 3e-6


def test_what_the_user_fixes_is_not_searched(few, where):
    planned = plan_sweep(request(few, overrides={"method.lr": "1e-5"}), where)
    assert planned.experiment.method.lr == 1e-5
    assert "method.lr" not in planned.space
    assert "method.frame_norm" in planned.space


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"method": "clip4cilp"}, "method: no method called 'clip4cilp'. Did you mean clip4clip"),
        ({"overrides": {"method.lrr": "1"}}, "method.lrr: no such setting. Did you mean 'lr'"),
        ({"overrides": {"optim.epochs": "two"}}, "optim.epochs: .*'two'"),
        ({"overrides": {"optim.epochs": "-1"}}, "optim: epochs must be >= 0, got -1"),
        ({"presets": ("papr",)}, "clip4clip has none called 'papr'. Did you mean 'paper'"),
        ({"space": ("method.lrr=1,2",)}, "method.lrr: no such setting"),
        ({"space": ("method.frame_norm=l2,l3",)}, "method.frame_norm: .*'l3'"),
        ({"space": ("method.lr",)}, "write name=VALUE,VALUE"),
        ({"search": {"searcher": "bayes"}}, "searcher: 'bayes' is none of"),
        ({"baselines": ("zero_shto",)}, "no method called 'zero_shto'. Did you mean zero_shot"),
        ({"baselines": ("clip4clip:none",)}, "clip4clip has none called 'none'"),
        ({"top": 0}, "--top must be >= 1"),
        ({"seeds": -1}, "--seeds >= 0"),
        ({"stream": "shapse-5"}, "shapse-5.* Did you mean"),
        ({"method": "zero_shot", "overrides": {"method.frame_norm": "l2"}}, "nothing is searched"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_in_one_line(few, where, more, message):
    with pytest.raises(ConfigError, match=message) as error:
        plan_sweep(request(**{"stream": few, **more}), where)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a b", "../up", "", "a/b", ".hidden"])
def test_a_sweeps_name_names_a_folder(few, where, name):
    with pytest.raises(ConfigError, match="letters, digits"):
        sweep(request(few, name=name), where)


def test_a_sweep_too_large_for_this_machine_is_refused_before_anything_is_rendered(where):
    with pytest.raises(ConfigError, match="a trial needs 3.7 CPUs"):
        sweep(request("shapes-5"), replace(where, workers=4, address="local"))
    assert not (where.runs / "streams").exists()
    assert not (where.runs / "store").exists()


def test_a_tracking_server_that_is_down_is_said_before_anything_is_rendered(where, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="tracking http://127.0.0.1:9: connection refused"):
        sweep(request("shapes-5"), where)
    assert [path.name for path in where.runs.iterdir()] == []


def test_a_sweep_that_exists_is_not_overwritten(few, where):
    write_plan(_trial_plan(where, "s", Tracker("sqlite:///x", where.runs)), where.folder("s"))
    with pytest.raises(ConfigError, match="this sweep exists. Write `ctvr sweep --resume s`"):
        sweep(request(few), where)


def test_a_sweep_that_does_not_exist_is_not_resumed(where):
    with pytest.raises(ConfigError, match="sweep: none is called 'yesterday'"):
        resume("yesterday", where)


def test_a_resumed_sweep_keeps_its_trials_and_takes_the_cluster_of_today(few, where):
    first = replace(where, workers=2, cpus_per_worker=0.5, store="store2", max_concurrent=3)
    plan = _trial_plan(first, "s", Tracker("sqlite:///x", where.runs))
    kept = {"where": {"address": None, "nodes": 1, "local_cpus": 2, "max_concurrent": 3}}
    found = _kept_where(replace(where, local_cpus=8), plan, kept)
    assert (found.workers, found.cpus_per_worker, found.store) == (2, 0.5, str(Path("store2").resolve()))
    assert (found.local_cpus, found.max_concurrent) == (8, 3)


def test_a_request_comes_back_from_json():
    asked = request("few", presets=("a",), space=("b=1",), baselines=("c",), search={"trials": 3})
    assert _read_request({**vars(asked), "presets": ["a"], "space": ["b=1"], "baselines": ["c"]}) == asked


def test_rays_own_state_is_kept_apart_for_every_sweep(where):
    tracker = Tracker("sqlite:///x", where.runs)
    assert _trial_plan(where, "s", tracker).storage == str(where.folder("s"))
    assert _trial_plan(replace(where, storage="s3://b/ray/"), "s", tracker).storage == "s3://b/ray/s"


def test_ctrl_c_says_how_to_go_on_and_closes_open_runs(where):
    tracker = where.tracker("few")
    parent = tracker.open_sweep("s", "few", {})
    left, done = tracker.open_run("few", "a", {}, parent), tracker.open_run("few", "b", {}, parent)
    tracker.close(done)
    with (
        pytest.raises(Interrupted, match=f"Go on with: ctvr sweep --resume s --runs {where.runs}"),
        _interruptible("sweep s", "ctvr sweep --resume s", where, tracker, parent),
    ):
        raise KeyboardInterrupt
    assert {run.run_id: run.status for run in tracker.find_runs()} == {left: "KILLED", done: "FINISHED"}
    found = tracker.find_sweep("s")
    assert found is not None
    assert found.status == "KILLED"


# ----------------------------------------------------------------------------------------------- the rerun


def finished(where: Where, few: str, gains: dict[str, float | None], **settings: object) -> list[str]:
    """A sweep in MLflow whose trials ended with these gains; None did not complete."""
    tracker = where.tracker("few")
    parent = tracker.open_sweep("s", "few", {})
    stream = load_stream(few, where.runs)
    for name, gain in gains.items():
        made = sweep_jobs.resolve(
            {"method": "clip4clip", "stream": few, "evaluation.split": "val", **settings}, stream.settings, ["shapes"]
        )
        run = tracker.open_run("few", name, made.settings, parent, {"ctvr.presets": "shapes"})
        if gain is not None:
            tracker.log_task(run, 2, {GAIN: gain})
            tracker.set_tags(run, {"ctvr.complete": "true"})
        else:
            tracker.log_task(run, 1, {GAIN: 99.0})
    return list(gains)


def test_a_finished_sweep_waits_for_mlflow_and_says_what_to_do_where_it_stays_away(few, where, monkeypatch):
    planned, outcome = plan_sweep(request(few), where), Outcome(2, 2, 0, 0, 0, 9.0)
    tracker = where.tracker("small")
    parent = tracker.open_sweep("s", "small", {}, {})
    run = tracker.open_run("small", "a", {"method.lr": 1}, parent, {"ctvr.complete": "true"})
    tracker.log_task(run, 3, {GAIN: 1.5})
    monkeypatch.setattr(sweep_jobs.time, "sleep", lambda seconds: None)
    answers = iter([(0, 4), (0, 4), (4, 0)])
    monkeypatch.setattr(Tracker, "flush", lambda self: next(answers))
    assert "best: a, stream/t2v/r1_gain +1.50" in _conclude(planned, where, tracker, outcome, parent)
    assert list(answers) == []

    monkeypatch.setattr(sweep_jobs, "MLFLOW_SECONDS", 0.0)
    monkeypatch.setattr(Tracker, "flush", lambda self: (0, 4))
    with pytest.raises(FailedRuns) as error:
        _conclude(planned, where, tracker, outcome, parent)
    said = str(error.value).splitlines()
    assert said[1:] == [
        "4 records wait because MLflow does not answer, so no winner can be named.",
        "Start it again, then: ctvr sync; ctvr rerun --sweep s",
    ]


def test_winners_are_the_best_of_the_complete_trials(few, where):
    finished(where, few, {"a": 1.0, "b": 3.0, "stopped": None, "c": float("nan"), "d": 2.0})
    assert [run.name for run in best_trials(where.tracker(), "s", 4)] == ["b", "d", "a", "c"]


def test_without_a_complete_trial_there_is_no_winner(few, where):
    finished(where, few, {"a": None})
    with pytest.raises(ConfigError, match="no trial is complete. Resume it: ctvr sweep --resume s"):
        best_trials(where.tracker(), "s", 1)
    with pytest.raises(ConfigError, match="none is called 't'"):
        best_trials(where.tracker(), "t", 1)


def test_reruns_are_on_test_videos_over_fresh_seeds(few, where):
    finished(where, few, {"a": 1.0}, **{"method.lr": 3e-6, "optim.betas": "0.8,0.9", "seed": 0})
    stream, winners = load_stream(few, where.runs), best_trials(where.tracker(), "s", 1)
    runs = rerun_experiments(winners, stream, few, 2, ["zero_shot", "clip4clip:paper"], {"optim.epochs": "1"}, 1)
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


def test_a_winner_that_equals_a_baseline_runs_once(few, where):
    finished(where, few, {"a": 1.0, "b": 0.5})
    stream, winners = load_stream(few, where.runs), best_trials(where.tracker(), "s", 2)
    assert len(rerun_experiments(winners, stream, few, 3, ["clip4clip:shapes"], {}, 1)) == 3


def test_settings_of_other_methods_do_not_reach_the_baselines():
    given = {"method.lr": 1, "base.lr": 2, "seed": 3, "optim.epochs": 4, "data.num_frames": 5, "backbone.name": "x"}
    assert common(given) == {"optim.epochs": 4, "data.num_frames": 5, "backbone.name": "x"}


def test_only_what_trains_depends_on_its_seed():
    made = {"stream": "s", "backbone.name": "tiny-clip", "backbone.weights": "shipped"}
    assert not trains(sweep_jobs.resolve({"method": "zero_shot", **made}))
    assert trains(sweep_jobs.resolve({"method": "clip4clip", **made}))
    assert not trains(sweep_jobs.resolve({"method": "clip4clip", "optim.epochs": 0, **made}))


def test_complete_runs_of_an_interrupted_rerun_are_not_run_again(few, where):
    finished(where, few, {"a": 1.0})
    stream, tracker = load_stream(few, where.runs), where.tracker()
    runs = rerun_experiments(best_trials(tracker, "s", 1), stream, few, 2, [], {}, 1)
    parent = tracker.open_sweep("final", "few", {})
    tags = {"ctvr.trial": f"final-{label_of(runs[0].settings)}"}
    half = tracker.open_run("few", "x", {}, parent, tags)
    assert _not_complete(runs, "final", tracker) == runs
    tracker.set_tags(half, {"ctvr.complete": "true"})
    assert _not_complete(runs, "final", tracker) == runs[1:]


def test_lists_of_mlflow_are_written_as_on_the_command_line():
    assert _as_given({"a": "[0.9, 0.999]", "b": "1e-06", "c": "None"}) == {"a": "0.9, 0.999", "b": "1e-06", "c": "None"}


def test_a_rerun_of_an_unknown_sweep_is_one_line(where):
    with pytest.raises(ConfigError, match="sweep: none is called 'x'"):
        rerun("x", where)
    with pytest.raises(ConfigError, match="--top and --seeds must be >= 1"):
        rerun("x", where, seeds=0)
