"""`import ctvr` gives the same runs, tables and mistakes as the command line, as objects."""

import importlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest

import ctvr
from ctvr import results
from ctvr.orchestrator.execution import ExecutionConfig
from tests.refusing import refuses


@pytest.fixture(scope="module")
def manifest(learned) -> Path:
    return learned / "small" / "small.json"


@pytest.fixture(scope="module")
def runs(learned, tmp_path_factory) -> Path:
    """Return a copy: each call of `ctvr.run` adds a run to MLflow, and other tests expect one run of each method."""
    return shutil.copytree(learned, tmp_path_factory.mktemp("api") / "runs")


@pytest.mark.parametrize("name", ctvr.__all__)
def test_a_public_name_is_handed_on_and_documented(name):
    found = getattr(ctvr, name)
    assert found.__module__ == ctvr._PUBLIC[name], "name the file that defines it"
    assert found is getattr(importlib.import_module(ctvr._PUBLIC[name]), name)
    assert found.__doc__


def test_an_unknown_name_is_refused_with_those_that_there_are():
    assert sorted(ctvr._PUBLIC) == dir(ctvr) == sorted(ctvr.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'laod'\. Public names: .*load"):
        ctvr.laod  # noqa: B018


def test_a_run_gives_what_mlflow_has(runs, manifest):
    run = ctvr.run("zero_shot", manifest, settings={"optim.epochs": 1}, runs=runs)  # finished: nothing is trained
    (kept,) = (
        r for r in run.execution.tracker().find_runs(tags={"ctvr.method": "zero_shot"}) if r.run_id == run.run_id
    )
    assert {name: kept.last(name)[1] for name in run.metrics} == pytest.approx(run.metrics)
    assert len(run.ranks) == 6
    assert [len(row) for row in run.own] == [1, 2]
    assert list(run.frame()["stream/t2v/r1"]) == [row["stream/t2v/r1"] for row in run.history]
    assert run.settings["method"] == run.method == "zero_shot"


def test_a_run_is_one_line_in_a_terminal_and_two_matrices_in_a_notebook(runs, manifest):
    run = ctvr.run("zero_shot", manifest, settings={"optim.epochs": 1}, runs=runs)
    shown = repr(run)
    assert shown.startswith("Run(zero_shot on small: R@1 ")
    assert len(shown) < 120
    assert run.run_id[:8] in shown
    drawn = run._repr_html_()
    cells = [float(cell) for cell in re.findall(r"%,transparent\)\">([\d.]+)</td>", drawn)]
    assert cells == [round(value) for matrix in (run.own, run.union) for line in matrix for value in line]


def test_a_figure_of_a_run_has_the_means_of_both_matrices(runs, manifest):
    run = ctvr.run("zero_shot", manifest, settings={"optim.epochs": 1}, runs=runs)
    drawn = [list(line.get_ydata()) for line in run.plot().axes[0].lines]
    assert drawn == [[sum(row) / len(row) for row in matrix] for matrix in (run.own, run.union)]


def test_a_stream_is_one_line_in_a_terminal_and_a_strip_of_each_task_in_a_notebook(runs, manifest):
    stream = ctvr.stream(manifest, runs=runs)
    videos = {item.video for task in stream.tasks for item in (*task.train, *task.val, *task.test)}
    assert repr(stream) == f"Stream(small: {len(stream.tasks)} tasks, {len(videos)} videos)"
    drawn = stream._repr_html_()
    assert drawn.count('src="data:image/jpeg;base64,') == len(stream.tasks)
    assert all(task.test[0].captions[0] in drawn for task in stream.tasks)


def test_a_table_has_the_rows_and_the_numbers_of_the_command(runs, manifest):
    table = ctvr.table(stream="small", runs=runs).set_index("method")
    assert set(table.index) == {"zero_shot", "framefusion_moe"}
    run = ctvr.run("zero_shot", manifest, settings={"optim.epochs": 1}, runs=runs)
    assert table.loc["zero_shot", "R@1"] == pytest.approx(run.metrics["stream/t2v/r1"])
    assert any(note.startswith("Mean and sample") for note in table.attrs["notes"])


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda: ctvr.run("clip4clpi"), "'clip4clpi' clip4clip"),
        (lambda: ctvr.run("clip4clip", "shapse-5"), "'shapse-5'"),
        (
            lambda: ctvr.run("clip4clip", settings={"optim.epohcs": 1}),
            "optim.epohcs optim.epochs=1",
        ),
        (
            lambda: ctvr.run("clip4clip", preset="papr"),
            "clip4clip 'papr' 'paper'",
        ),
        (lambda: ctvr.run("clip4clip", config="no.yaml"), "--config no.yaml"),
        (lambda: ctvr.sweep("clip4clpi"), "'clip4clpi'"),
        (lambda: ctvr.sweep(trails=3), "--trails"),
        (lambda: ctvr.sweep(trials="x"), "--trials 'x' 3"),
        (lambda: ctvr.sweep(name="a/b"), "'a/b' ASCII"),
        (lambda: ctvr.table(), "table"),
        (lambda: ctvr.table("monday"), "--runs"),
        (lambda: ctvr.load("monday", runs="nowhere"), "--runs"),
        (lambda: ctvr.stream("shapse-5"), "'shapse-5'"),
        (lambda: ctvr.schema("clip4clpi"), "'clip4clpi'"),
    ],
)
def test_a_mistake_is_the_one_line_of_the_command(tmp_path, monkeypatch, call, values):
    monkeypatch.chdir(tmp_path)
    with refuses(*values.split(), kind=ctvr.ConfigError):
        call()
    assert not (tmp_path / "nowhere").exists()


def test_a_sweep_is_asked_for_as_on_the_command_line(tmp_path, monkeypatch):
    from ctvr.orchestrator.sweeps import sweep as jobs

    asked = []
    monkeypatch.setattr(jobs, "sweep", lambda request, execution: asked.append((request, execution)) or "text")
    monkeypatch.setattr("ctvr.orchestrator.cli.sweep.with_page", lambda text, *_: text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "method: {name: structalign, lambda1: 0.2}\noptim.epochs: 3\nsearch: {trials: 5}\n"
    )
    options = {"seeds": 2, "confirm": 0, "name": "n", "max_concurrent": 1, "baselines": ["zero_shot", "lora"]}
    space = {"method.lambda2": [0.1, 0.2]}
    done = ctvr.sweep(config="s.yaml", settings={"optim.epochs": 4}, space=space, runs="r", **options)
    ((request, execution),) = asked
    assert (done.name, done.text, execution.runs, execution.max_concurrent) == ("n", "text", Path("r"), 1)
    preset = request.preset
    assert (preset.rows[0].method, request.stream, request.name) == ("structalign", "worlds-quick", "n")
    assert request.overrides == {"method.lambda1": 0.2, "optim.epochs": "4"}
    assert preset.search == {"trials": 5, "confirm": 0}
    assert (preset.seeds, request.baselines, request.space) == (2, ("zero_shot", "lora"), ("method.lambda2=0.1,0.2",))


def test_the_trials_of_a_sweep_have_their_states_and_every_report(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    tracker = ExecutionConfig(runs=tmp_path).tracker("few")
    parent, gain = tracker.open_sweep("s", "few", {"search.metric": "stream/t2v/r1_gain"}), "stream/t2v/r1_gain"
    for name, number, tags, gains in (
        ("b", 2, {"ctvr.stopped": "asha after task 1"}, [-1.0]),
        ("a", 1, {"ctvr.complete": "true"}, [2.0, 3.0]),
        ("c", 3, {}, []),
    ):
        run = tracker.open_run("few", name, {"method.lr": number}, parent, {"ctvr.number": f"{number:03d}", **tags})
        for task, value in enumerate(gains, 1):
            tracker.log_task(run, task, {gain: value})
    found = ctvr.trials("s", runs=tmp_path)
    assert [(row["name"], row["state"], row["stopped"], row["task"]) for row in found] == [
        ("a", "complete", "", 2),
        ("b", "stopped", "asha after task 1", 1),
        ("c", "running", "", 0),
    ]
    assert [row[gain] for row in found[:2]] == [3.0, -1.0]
    assert math.isnan(found[2][gain])
    assert [row["method.lr"] for row in found] == ["1", "2", "3"]
    reports = ctvr.trials("s", reports=True, runs=tmp_path)
    assert [(row["name"], row["task"], row[gain]) for row in reports[:3]] == [
        ("a", 1, 2.0),
        ("a", 2, 3.0),
        ("b", 1, -1.0),
    ]
    with refuses("nothing"):
        ctvr.trials("nothing", runs=tmp_path)


def test_the_schema_has_exactly_the_settings_of_a_run(runs, manifest):
    """Resolved settings of a run are valid under its method's schema; a misspelt name is not among the properties."""
    of_one = ctvr.schema("framefusion_moe")
    run = ctvr.run("framefusion_moe", manifest, settings={"optim.epochs": 1}, runs=runs)
    assert set(run.settings) - {"method"} <= set(of_one["properties"])
    flat = {name for name in of_one["properties"] if "." in name and not name.startswith("method.reducer")}
    assert flat == {name for name in run.settings if "." in name} - {"method.reducer.name"}
    assert of_one["additionalProperties"] is False
    beta = of_one["properties"]["method.beta"]
    assert (beta["type"], beta["default"]) == ("number", 0.6)
    assert of_one["properties"]["data.augment"]["enum"] == ["none", "crop_flip", "gray_jitter"]
    everything = ctvr.schema()
    assert {rule["if"]["properties"]["method"]["const"] for rule in everything["allOf"]} == set(ctvr.list_methods())
    json.dumps(everything)


def test_without_pandas_a_frame_is_a_list(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert results.as_frame([{"a": 1}]) == [{"a": 1}]
