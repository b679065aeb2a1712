"""Parts of a search that are checked before it starts, and its end. With a cluster: on_ray/test_sweeps.py."""

import json
import operator
import random
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from unittest.mock import Mock

import pytest

from ctvr.orchestrator.errors import ConfigError, Interrupted, RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.plan import GAIN, Capacity, SearchConfig, SearchOutcome, write_plan
from ctvr.orchestrator.on_ray.search import grid_points, make_searcher
from ctvr.orchestrator.on_ray.search_budget import brackets_for
from ctvr.orchestrator.on_ray.successive_halving import SuccessiveHalving
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps import session
from ctvr.orchestrator.sweeps.plan import SweepPlan, SweepRequest, plan_sweep, read_request, request_search
from ctvr.orchestrator.sweeps.plan_text import describe_best, describe_plan, describe_request, describe_scheduler
from ctvr.orchestrator.sweeps.planned_search import PlannedSearch
from ctvr.orchestrator.sweeps.session import resume_options, trial_plan
from ctvr.orchestrator.sweeps.sweep import _conclude, resume, sweep
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker
from ctvr.search_spaces import SPACES
from tests.refusing import refused
from tests.small_stream import write_stream

LRS = ("optim.lr_scale=1,2",)
UNTYPED = {"settings", "overrides", "search", "writer"}  # parts of a plan.json whose values have no declared type
GMACS = "stream/cost/video_gmacs"


def request(stream: str, **more: object) -> SweepRequest:
    return request_search(**{"method": "clip4clip", "stream": stream, "name": "s", "overrides": {}, **more})


def search_of(asked: SweepRequest, execution: ExecutionConfig) -> PlannedSearch:
    return plan_sweep(asked, execution).searches[""]


# ------------------------------------------------------------------------------------------- what is asked


def test_a_sweep_chooses_on_validation_videos(few, execution):
    planned = search_of(request(few), execution)
    assert planned.experiment.evaluation.split == "val"
    assert planned.fixed_settings["evaluation.split"] == "val"
    assert planned.experiment.data.num_frames == 4  # which the stream recommends


def test_a_grid_has_as_many_trials_as_points_whatever_was_asked_for(few, execution):
    space = ("method.lr=0,1e-6,1e-5", "method.frame_norm=none,l2", "method.train_scale=true", "optim.weight_decay=0.2")
    planned = plan_sweep(request(few, search={"searcher": "grid", "trials": 4}, space=space), execution)
    assert planned.trials_per_row == 6
    assert plan_sweep(request(few, search={"trials": 4}), execution).trials_per_row == 4


@pytest.mark.parametrize(
    ("search", "tasks", "stops"),
    [({}, 1, False), ({}, 2, True), ({"grace_tasks": 2}, 2, False), ({"grace_tasks": 2}, 3, True)],
)
def test_a_plan_says_if_no_trial_can_be_stopped_early(search, tasks, stops):
    config = SearchConfig(**search)
    said = describe_scheduler(config, tasks)
    assert ("without early stopping" in said) is not stops
    halving = SuccessiveHalving(Mock(), config, tasks, dict)
    assert bool(halving.rungs) is stops
    assert "early stopping" not in describe_scheduler(replace(config, scheduler="none"), tasks)
    assert "scheduler asha, which depends on timing" in describe_scheduler(replace(config, scheduler="asha"), tasks)


def test_one_task_sweep_compares_trials_at_equal_epochs(tmp_path, execution):
    one = str(write_stream(tmp_path / "one", num_tasks=1, train=2, searched=1))
    overrides = {"optim.epochs": "5"}
    planned = plan_sweep(request(one, overrides=overrides), execution)
    search = planned.searches[""]
    assert search.epochs == 5
    assert search.fixed_settings["evaluation.every_epoch"] is True
    assert search.recommended_experiment(1).evaluation.every_epoch
    text = describe_plan(planned, Capacity(2, 0, 2), 0, execution, Tracker("sqlite:///x", Path("x")))
    assert "compared after epochs 1, 2, 4 of 5, since the stream has one task" in text
    timing = plan_sweep(request(one, overrides=overrides, search={"scheduler": "asha"}), execution)
    assert "after each of 5 epochs" in described(timing, execution, 2)
    filled = planned.fit_to(16)
    assert filled.search_config.brackets_at_once == brackets_for(
        planned.search_config, planned.search_config.trials, 5, 16
    )
    for more, search, space in (
        ({"optim.epochs": "1"}, {}, ()),
        ({}, {}, ("optim.epochs=5,6",)),
        ({**overrides, "evaluation.every_epoch": "false"}, {}, ()),
        (overrides, {"grace_tasks": 5}, ()),
    ):
        plan = plan_sweep(request(one, overrides=more, search=search, space_add=space), execution)
        other = plan.searches[""]
        assert (other.epochs, other.experiment.evaluation.every_epoch) == (0, False)
        assert "without early stopping" in describe_scheduler(plan.search_config, 1, [other.epochs])
    unstopped = search_of(request(one, overrides=overrides, search={"scheduler": "none"}), execution)
    assert (unstopped.epochs, unstopped.experiment.evaluation.every_epoch) == (0, False)


def test_trials_of_a_stream_with_one_task_form_no_groups(tmp_path, execution):
    """All would train the same model, since the settings in which the trials of a group differ are read from task 2
    on.
    """
    one = str(write_stream(tmp_path / "one", num_tasks=1, train=2, searched=1))
    assert search_of(request(one, method="framefusion_moe"), execution).search_space.later == ()


def test_space_replaces_and_space_add_extends_the_search_space(few, execution):
    words = ("method.lr=1e-6,4e-6,2e-5",)
    plan = plan_sweep(request(few, search={"trials": 3}, space=words), execution)
    only = plan.searches[""]
    assert list(only.space) == ["method.lr"]
    assert plan.search_config.searcher == "grid"  # every value once
    assert [point["method.lr"] for point in grid_points(only.search_space)] == [1e-6, 4e-6, 2e-5]
    assert only.experiment.optim == search_of(request(few), execution).experiment.optim
    text = describe_request(plan)
    assert "varies 1 of 4 settings (method.lr in 1e-06, 4e-06, 2e-05; the others as recommended)" in text
    added = plan_sweep(request(few, search={"trials": 3}, space_add=words), execution)
    assert set(added.searches[""].space) > {"method.lr"}
    assert added.search_config.searcher == "tpe"


KINDS = "method.reducer.name=none,tome,evit"
MERGED, KEPT = (
    "method.reducer.r=1,2 where method.reducer.name=tome",
    "method.reducer.keep_rate=0.5,0.7 where method.reducer.name=evit",
)


def test_a_setting_of_one_variant_is_searched_with_that_variant(few, execution):
    asked = request(few, method="lora", space=(MERGED, KINDS, KEPT), search={"trials": 5})
    plan = plan_sweep(asked, execution)
    planned = plan.searches[""]
    assert plan.search_config.searcher == "grid"  # five points with conditions, eleven without
    points = grid_points(planned.search_space)
    assert sorted(map(len, points)) == [1, 2, 2, 2, 2]
    full = {**planned.fixed_settings, "workers": 1}
    made = [resolve({**full, **point}, planned.stream.settings, planned.experiment.presets) for point in points]
    assert {each.settings["method.reducer.name"] for each in made} == {"none", "tome", "evit"}
    assert planned.recommended_point == {"method.reducer.name": "none"}
    text = describe_request(plan)
    assert "method.reducer.r in 1, 2 where method.reducer.name is tome;" in text
    added = plan_sweep(replace(asked, space=(), space_add=asked.space), execution)
    space = added.searches[""].search_space
    suggests = make_searcher(replace(added.search_config, searcher="random"), space, 2)
    drawn = [suggests.suggest(str(number)) for number in range(12)]
    assert {len(point) for point in drawn} == {len(space.space) - 2, len(space.space) - 1}
    alone = search_of(
        request(few, method="lora", overrides={"method.reducer.name": "tome"}, space=(MERGED,)), execution
    )
    assert (alone.conditions, list(alone.space)) == ({}, ["method.reducer.r"])


NEVER = "--space method.reducer.r where method.reducer.name="
CONDITIONS = {  # words of --space -> where, a part of what is said
    (MERGED,): (f"{NEVER}tome", "method.reducer.name is none in every trial"),
    (KINDS, MERGED.replace("=tome", "=sta")): (f"{NEVER}sta", "method.reducer.name is not searched at such a"),
    ("method.lr=1,2 where method.rank=4", "method.rank=4,8 where method.lr=1"): ("", "leads back to method.lr"),
    (KINDS, "method.reducer.r=1,2 where method.reducer.name"): (
        *("--space: 'method.reducer.r=1,2 where method.reducer.name': where", "is not name=VALUE"),
    ),
    ("method.rank=1,2 where",): ("--space", "is missing after 'where'. Use for example method.rank=1,2 where"),
    ("method.rank=1,2 if a=1,2",): ("--space", "Use for example method.rank=1,2 where a=1,2."),
    ("where method.rank=4",): ("--space", "its setting is missing"),
    ("method.rank=[1,2]",): ("--space", "not be in brackets. Use method.rank=1,2."),
    ("method.rank=1-8",): ("--space", "not a range. Use for example method.rank=1,8."),
    ("method.lr=loguniform(1e-6, 1e-4)",): ("--space", "not a range. Use for example method.lr=1e-6,1e-4."),
    ("method.rank=1 2 4",): ("--space", "by commas. Use method.rank=1,2,4."),
    ("method.rank=1,, 2",): ("--space", "is empty. Use method.rank=1,2."),
}


@pytest.mark.wording
@pytest.mark.parametrize("space", CONDITIONS, ids=" ".join)
def test_a_condition_that_never_holds_is_refused(few, execution, space):
    where, said = CONDITIONS[space]
    refused(lambda: plan_sweep(request(few, method="lora", space=space), execution), said, where=where)


def test_a_search_with_a_cost_as_an_objective_measures_it_and_confirms_its_front(few, execution):
    objectives = {"metric": f"{GAIN},{GMACS}", "mode": "max,min"}
    planned = plan_sweep(request(few, search=objectives), execution)
    assert planned.searches[""].fixed_settings["evaluation.costs"] is True
    assert planned.searches[""].recommended_experiment(1).evaluation.costs
    text = describe_request(planned)
    assert "optimizes  R@1 gain over zero-shot, GMACs of a video (max,min)" in text
    assert "confirms   up to 8 trials of the Pareto front and the recommended settings over 3 new seeds" in text
    fewer = plan_sweep(request(few, search={**objectives, "confirm": 3}), execution)
    assert fewer.search_config.confirm == 3
    none = plan_sweep(request(few, search={**objectives, "confirm": 0}, seeds=1), execution)
    text = describe_request(none)
    assert "confirms   nothing: the Pareto front is accepted without a test" in text
    assert "rerun      up to 1 of the Pareto front over 1 seed on test videos" in text
    runs = [
        RunRecord(name, name, {"method.lr": rate}, {GAIN: [(2, gain)], GMACS: [(2, cost)]}, {}, "FINISHED", "")
        for name, rate, gain, cost in (("s-1", "1e-5", 5.0, 3.0), ("s-2", "1e-6", 4.0, 2.0), ("s-3", "1e-4", 3.0, 9.0))
    ]
    found = "\n".join(describe_best(none.searches[""], none.search_config, runs, {}))
    assert found.startswith("Pareto front: 2 of 3 complete trials")
    assert found.endswith("  s-1: method.lr=1e-5\n  s-2: method.lr=1e-6")
    plain = search_of(request(few, search={"metric": f"{GAIN},stream/t2v/bwf", "mode": "max,min"}), execution)
    assert "evaluation.costs" not in plain.fixed_settings


def test_a_condition_of_the_search_space_is_dropped_where_the_user_fixes_the_other_setting(few, execution, monkeypatch):
    monkeypatch.setitem(SPACES["lora"], "CONDITIONS", {"method.rank": ("optim.epochs", (7,))})
    assert "method.rank" not in search_of(request(few, method="lora"), execution).space
    seven = search_of(request(few, method="lora", overrides={"optim.epochs": "7"}), execution)
    assert (seven.conditions, "method.rank" in seven.space) == ({}, True)
    both = search_of(request(few, method="lora", space_add=("optim.epochs=1,7",)), execution)
    assert both.conditions == {"method.rank": ("optim.epochs", [7])}


def test_every_listed_value_is_suggested_while_trials_last(few, execution):
    words = ("method.lr=1e-7,1e-6,4e-6,2e-5", "optim.weight_decay=0,0.1,0.2", "optim.epochs=1,2")
    planned = plan_sweep(request(few, search={"trials": 6}, space=words), execution)
    assert planned.search_config.searcher == "tpe"  # 24 points are more than the trials
    searcher = make_searcher(planned.search_config, planned.searches[""].search_space, 2)
    points = [searcher.suggest(str(number)) for number in range(6)]
    assert {point["method.lr"] for point in points} == {1e-7, 1e-6, 4e-6, 2e-5}
    assert {point["optim.weight_decay"] for point in points} == {0, 0.1, 0.2}


@pytest.mark.parametrize("method", ["framefusion_moe", "structalign"])
def test_the_point_that_is_tried_first_is_the_papers_for_the_stream(method, few, execution, tmp_path):
    content = json.loads(Path(few).read_text())
    actnet = tmp_path / "actnet.json"
    settings = {**content["settings"], "preset": "paper-actnet", "data.num_frames": 24}
    actnet.write_text(json.dumps({**content, "settings": settings, "videos": str(Path(few).parent / "videos")}))
    points = [
        planned.recommended_point
        for planned in (search_of(request(stream, method=method), execution) for stream in (few, str(actnet)))
    ]
    assert [point["method.num_experts"] for point in points] == [10, 5]
    later = "method.lr" if method == "structalign" else "method.lr_text"
    assert points[0][later] < points[1][later] == 6e-6
    released = search_of(request(few, method=method, presets=("released",)), execution)
    assert released.recommended_point[later] == 3e-6


def test_settings_fixed_by_the_user_are_not_searched(few, execution):
    planned = search_of(request(few, overrides={"method.lr": "1e-5"}), execution)
    assert planned.experiment.method.lr == 1e-5
    assert "method.lr" not in planned.space
    assert "method.frame_norm" in planned.space


def test_settings_changed_by_an_ablation_are_not_searched(few, execution):
    plain = search_of(request(few, method="framefusion_moe"), execution)
    ablated = search_of(request(few, method="framefusion_moe", presets=("no-cross-task",)), execution)
    assert set(plain.space) - set(ablated.space) == {"method.beta"}
    assert ablated.experiment.settings["method.beta"] == 0


def test_a_configuration_with_a_name_of_its_own_is_searched_as_itself(few, execution):
    planned = search_of(request(few, method="tvr_plus_cl"), execution)
    assert planned.experiment.name == "tvr_plus_cl"
    assert planned.experiment.method.base == "clip_vip"  # the space's own fixed base is VR-LwF's
    assert search_of(request(few, method="vr_lwf"), execution).experiment.method.base == "clip4clip"
    assert set(planned.recommended_point) == set(planned.space)


def fusing(fixed: str, searched: str) -> dict[str, object]:
    name, value = fixed.split("=")
    return {"method": "framefusion_moe", "overrides": {name: value}, "space": (searched,)}


EXPERTS = ("method.top_k", "method.num_experts")
REFUSED: dict[str, tuple[dict[str, object], tuple[str, ...], str]] = {  # request, settings, a part of what is said
    "value": ({"space": ("method.frame_norm=l2,l3",)}, ("method.frame_norm",), "'l3'"),
    "few experts": (fusing("method.top_k=2", "method.num_experts=1,5"), EXPERTS, "Use method.top_k=1"),
    "many chosen": (fusing("method.num_experts=2", "method.top_k=1,4"), EXPERTS, "Use method.top_k=2"),
    "seed": ({"overrides": {"seed": "2"}}, ("seed",), "reruns use new seeds"),
    "split": ({"overrides": {"evaluation.split": "test"}}, ("evaluation.split=test",), "validation videos of small"),
    "seeds": ({"seeds": -1}, ("--seeds",), "got -1"),
    "fixed": ({"method": "zero_shot", "overrides": {"method.frame_norm": "l2"}}, ("",), "none is searched"),
    **{name: ({"name": name}, ("--name",), f"(got {name!r})") for name in ("a b", "../up", "", "a/b", ".hidden")},
}


@pytest.mark.wording
@pytest.mark.parametrize("case", REFUSED)
def test_a_sweep_that_cannot_run_is_refused_in_one_line(few, execution, case):
    more, settings, said = REFUSED[case]
    refused(lambda: sweep(request(**{"stream": few, **more}), execution), said, settings=settings)


def test_too_large_sweep_is_refused_before_rendering(execution):
    refused(lambda: sweep(request("shapes-5"), replace(execution, workers=4, address="local")), "3.7", "CPUs")
    assert not (execution.runs / "streams").exists()
    assert not (execution.runs / "store").exists()


def test_unreachable_tracking_server_is_reported_first(execution, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    refused(lambda: sweep(request("shapes-5"), execution), where="tracking http://127.0.0.1:9")
    assert not execution.runs.exists()


@pytest.mark.parametrize("refused", ["cluster", "capacity"])
def test_a_sweep_refused_by_the_cluster_leaves_no_database(few, execution, monkeypatch, refused):
    joined = nullcontext(replace(execution, gpus_per_trial=0))
    monkeypatch.setattr("ctvr.orchestrator.sweeps.sweep.ray_cluster", lambda execution: joined)
    function = "ray_cluster" if refused == "cluster" else "capacity"
    monkeypatch.setattr(f"ctvr.orchestrator.sweeps.sweep.{function}", Mock(side_effect=ConfigError("no")))
    with pytest.raises(ConfigError, match="^no$"):
        sweep(request(few), execution)
    assert not execution.runs.exists()


def test_a_sweep_that_exists_is_not_overwritten(few, execution):
    write_plan(trial_plan(execution, "s"), execution.folder("s"))
    refused(lambda: sweep(request(few), execution), "--resume", "s")


def test_a_request_comes_back_from_json():
    asked = request("few", presets=("a",), space=("b=1",), baselines=("c",), search={"trials": 3}, seeds=2)
    assert read_request(Path("plan.json"), json.loads(json.dumps(asdict(asked)))) == asked


@pytest.mark.parametrize("change", [{"colour": "red"}, {"preset": None}, {"preset": {"rows": "lwf"}}, {"overrides": 3}])
def test_a_request_of_another_version_is_refused_in_one_line(change):
    kept = {**json.loads(json.dumps(asdict(request("few")))), **change}
    refused(lambda: read_request(Path("plan.json"), kept), "plan.json", *change)
    refused(lambda: read_request(Path("plan.json"), {}), "plan.json", remedy=True)


def leaves(data, *path):
    """Return the path of each value in JSON that is not a filled list or object, and the value."""
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [leaf for key, part in parts for leaf in leaves(part, *path, key)]
    return found or [(path, data)]


class RayIsStarted(Exception):
    pass


def start_ray(execution):
    raise RayIsStarted


def test_an_edited_plan_is_refused_before_ray_by_file_key_and_value(few, execution, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.sweeps.sweep.ray_cluster", start_ray)
    asked = request(few, presets=("shapes",), search={"trials": 2}, seeds=2, baselines=("zero_shot",), space_add=LRS)
    plan = replace(trial_plan(execution, "s"), parent="0b1a", presets=("shapes",), tags={"ctvr.role": "trial"})
    write_plan(plan, execution.folder("s"), request=asdict(asked), where=resume_options(execution))
    file = execution.folder("s") / "plan.json"
    written = file.read_text()
    with pytest.raises(RayIsStarted):
        resume("s", execution)
    typed = [(path, value) for path, value in leaves(json.loads(written)) if not UNTYPED & {*path}]
    changes = [(path, value, new) for path, value in typed for new in (None, 5, "x", [], {}, True)]
    for path, value, new in random.Random(0).sample(changes, 60):
        data = json.loads(written)
        reduce(operator.getitem, path[:-1], data)[path[-1]] = new
        file.write_text(json.dumps(data))
        key, fits = ".".join(map(str, path)), type(new) is type(value) or (new == 5 and isinstance(value, float))
        with pytest.raises((ConfigError, RayIsStarted)) as caught:
            resume("s", execution)
        if caught.type is RayIsStarted:
            assert fits or value is None or key == "plan.parent", (key, new)
            continue
        error = caught.value
        assert type(error) is ConfigError, error
        assert error.where.startswith(f"{file}: "), error
        assert error.remedy, error
        assert fits or (error.where.endswith(f": {key}") and json.dumps(new) in error.fault), error
        assert "\n" not in str(error), error


def test_a_sweep_that_is_stopped_before_ray_starts_is_resumed_as_it_was_given(few, execution, monkeypatch, capsys):
    given = list[ExecutionConfig]()

    def stop(execution: ExecutionConfig) -> None:
        given.append(execution)
        assert "  searches  " in capsys.readouterr().err
        raise KeyboardInterrupt

    monkeypatch.setattr("ctvr.orchestrator.sweeps.sweep.ray_cluster", stop)
    for name, gpus in (("s", None), ("t", 0.0)):
        asked = replace(execution, gpus_per_trial=gpus, nodes=2)
        with pytest.raises(Interrupted, match=f"ctvr sweep --resume {name}"):
            sweep(replace(request(few), name=name), asked)
        with pytest.raises(Interrupted, match=f"ctvr sweep --resume {name}"):
            resume(name, replace(execution, gpus_per_trial=None))
        assert [(each.gpus_per_trial, each.nodes) for each in given[-2:]] == [(gpus, 2)] * 2


def test_a_sweep_that_its_cluster_refuses_leaves_its_name_free(few, execution, monkeypatch):
    def refuse(execution: ExecutionConfig) -> None:
        raise ConfigError("cannot be reached", "--address")

    monkeypatch.setattr("ctvr.orchestrator.sweeps.sweep.ray_cluster", refuse)
    for _ in range(2):
        refused(lambda: sweep(request(few), execution), where="--address")


def test_finished_sweep_waits_for_mlflow(few, execution, monkeypatch):
    planned = plan_sweep(request(few, search={"confirm": 0}), execution)
    outcome = SearchOutcome(2, 2, 0, 0, 0, 9.0)
    tracker = execution.tracker("small")
    parent = tracker.open_sweep("s", "small", {}, {})
    run = tracker.open_run("small", "a", {"method.lr": 1}, parent, {"ctvr.complete": "true"})
    tracker.log_task(run, 3, {GAIN: 1.5})
    monkeypatch.setattr(session.time, "sleep", lambda seconds: None)
    answers = iter([(0, 4), (0, 4), (4, 0)])
    monkeypatch.setattr(Tracker, "flush", lambda self: next(answers))
    assert "best: a, " in _conclude(planned, {"": outcome}, {"": parent}, execution, tracker)
    assert list(answers) == []

    monkeypatch.setattr(session, "MLFLOW_SECONDS", 0.0)
    monkeypatch.setattr(Tracker, "flush", lambda self: (0, 4))
    with pytest.raises(RunsFailed, match="^4 records .*: ctvr runs sync; ctvr sweep --resume s$"):
        _conclude(planned, {"": outcome}, {"": parent}, execution, tracker)


def test_a_search_without_a_complete_trial_fails_and_reruns_nothing(few, execution):
    planned, tracker = plan_sweep(request(few, seeds=2), execution), execution.tracker("small")
    parent = tracker.open_sweep("s", "small", {}, {})
    with pytest.raises(RunsFailed, match="0 complete, 1 stopped early, 1 failed(.|\n)*no trial is complete"):
        _conclude(planned, {"": SearchOutcome(2, 0, 1, 1, 0, 9.0)}, {"": parent}, execution, tracker)
    found = tracker.find_sweep("s")
    assert found is not None
    assert found.status == "FAILED"


def test_a_search_goes_by_a_number_that_its_table_shows(few, execution, tmp_path):
    content = json.loads(Path(few).read_text())
    cvlm = tmp_path / "cvlm.json"
    cvlm.write_text(json.dumps({**content, "protocol": "cvlm", "videos": str(Path(few).parent / "videos")}))
    assert plan_sweep(request(few), execution).search_config.metric == GAIN
    assert plan_sweep(request(str(cvlm)), execution).search_config.metric == "stream/t2v/r1_mean"
    asked = request(str(cvlm), search={"metric": "stream/t2v/bwf", "mode": "min"})
    config = plan_sweep(asked, execution).search_config
    assert (config.metric, config.mode) == ("stream/t2v/bwf", "min")


def test_metric_and_mode_of_a_search_space_are_read(few, execution, monkeypatch):
    monkeypatch.setitem(SPACES["clip4clip"], "METRIC", "stream/t2v/bwf")
    monkeypatch.setitem(SPACES["clip4clip"], "MODE", "min")
    found = plan_sweep(request(few), execution).search_config
    assert (found.metric, found.mode) == ("stream/t2v/bwf", "min")


def test_more_blocks_than_the_tower_has_are_not_searched(few, execution):
    planned = search_of(request(few, method="framefusion_moe"), execution)
    assert planned.space["method.ffa_layers"].categories == [1, 2, 3, 4]  # of a tower of four
    assert planned.recommended_point["method.ffa_layers"] == 4  # 10 are all of them
    asked = search_of(request(few, method="framefusion_moe", space=("method.ffa_layers=3,4,12",)), execution)
    assert asked.space["method.ffa_layers"].categories == [3, 4]


def test_refused_points_are_not_drawn_and_equal_models_are_one_trial(few, execution):
    fixed = search_of(request(few, method="framefusion_moe", overrides={"method.num_experts": "2"}), execution)
    assert fixed.space["method.top_k"].categories == [1, 2]
    words = (f"{name}={value}" for name, value in fixed.recommended_point.items() if name != "method.top_k")
    space = (*words, "method.num_experts=1,5")
    plan = plan_sweep(request(few, method="framefusion_moe", space_add=space, search={"searcher": "grid"}), execution)
    grid = plan.searches[""]
    pairs = [(1, 1), (5, 1), (5, 2), (5, 4)]
    assert [experts_of(point) for point in grid_points(grid.search_space)] == pairs
    assert plan.trials_per_row == 4
    for searcher in ("tpe", "grouped_tpe", "random"):
        search = SearchConfig(trials=8, searcher=searcher)
        suggests = make_searcher(search, grid.search_space, 4)
        due = SuccessiveHalving(
            suggests, search, 4, lambda point: resolve({**grid.fixed_settings, **point}).settings
        ).next_segments()
        assert sorted(experts_of(trial.point) for trial, _ in due) == pairs


def experts_of(point: Mapping[str, int]) -> tuple[int, int]:
    return point["method.num_experts"], point["method.top_k"]


def test_a_new_sweep_fits_the_cluster_and_its_request_records_how(few, execution):
    planned = plan_sweep(request(few, search={"trials": 64}), execution)
    assert (planned.search_config.lag, planned.search_config.brackets_at_once) == (0, 0)
    fitted = planned.fit_to(16)
    assert fitted.search_config.lag == fitted.request.preset.search["lag"] == 23
    assert plan_sweep(fitted.request, execution).fit_to(512).search_config.lag == 23  # as a resumed one
    text = described(fitted, execution, 16)
    assert "64 by grouped_tpe (the first 32 at random)" in text
    assert "scheduler halving, each trial compared with the 7 before it, lag 23 (points" in text
    assert "; 16 at once" in text
    assert "  or  " not in text
    brackets = planned.fit_to(7)
    number = brackets_for(planned.search_config, 64, len(planned.stream.tasks), 7)
    assert brackets.search_config.brackets_at_once == brackets.request.preset.search["brackets_at_once"] == number > 1
    assert f"in brackets of 8, {number} brackets at once" in described(brackets, execution, 7)
    few_trials = plan_sweep(request(few, search={"trials": 8}), execution).fit_to(16)
    text = described(few_trials, execution, 16)
    assert "8 at random, scheduler halving in brackets of 8" in text
    assert "; 8 at once; the cluster can run 16" in text
    assert "  or  " not in text  # no search of 8 trials learns


def described(planned: SweepPlan, execution: ExecutionConfig, places: int) -> str:
    room = Capacity(places, 0, places)
    return describe_plan(planned, room, 0, replace(execution, gpus_per_trial=0), execution.tracker("small"))


def test_the_plan_of_a_search_on_many_places_has_the_fast_and_the_informed_way(few, execution):
    planned = plan_sweep(request(few, search={"trials": 64}), execution).fit_to(32)
    (line,) = [line for line in described(planned, execution, 32).splitlines() if line.startswith("  choice ")]
    found = re.fullmatch(
        r"  choice     search.brackets_at_once=7 \(used\): (\S+) x the time of a task, all trials at random; "
        r"search.lag=23: (\S+) x, 32 of 64 trials informed \(simulated\)",
        line,
    )
    assert found is not None, line
    assert 2 <= float(found[1]) < float(found[2])
    fast = plan_sweep(request(few, search={"trials": 64, "brackets_at_once": 7}), execution).fit_to(32)
    assert "64 at random" in described(fast, execution, 32)


def test_a_plan_with_gpus_names_the_memory_of_a_finished_run(few, execution, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.sweeps.plan_text.memory_text", lambda *_: ["3.0 GiB in run 1"])
    planned, tracker = plan_sweep(request(few), execution), execution.tracker("small")
    for gpus, is_named in ((1, True), (0, False)):
        text = describe_plan(planned, Capacity(2, gpus, 2), 0, replace(execution, gpus_per_trial=gpus), tracker)
        assert ("\n  memory     3.0 GiB in run 1\n" in text) is is_named


def test_the_plan_describes_confirmation_and_detectable_difference(few, execution):
    planned = plan_sweep(request(few), execution)
    text = describe_request(planned)
    assert "the best 2 and the recommended settings over 3 new seeds on the same videos" in text
    assert "with 2 queries of 2 val videos in 2 tasks" in text
    off = plan_sweep(request(few, search={"confirm": 0, "scheduler": "none"}), execution)
    text = describe_plan(off, Capacity(2, 0, 2), 0, replace(execution, gpus_per_trial=0), execution.tracker("small"))
    assert "confirms   nothing: the best trial is accepted without a test" in describe_request(off)
    assert (
        "8 at random, scheduler none in brackets of 8 (points that train the same model are one trial); 2 at once"
        in text
    )


def test_the_unsearched_candidate_is_the_searchs_first_trial(few, execution):
    planned = search_of(request(few, method="framefusion_moe"), execution)
    unsearched = planned.recommended_experiment(1)
    assert unsearched.settings == {**planned.experiment.settings, "method.ffa_layers": 4}  # 10 are all four of them
    assert unsearched.evaluation.split == "val"
