"""`import ctvr` gives the same runs, tables and mistakes as the command line, as objects."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

import ctvr
from ctvr import api
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
    assert api._frame([{"a": 1}]) == [{"a": 1}]
