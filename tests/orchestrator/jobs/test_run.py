"""`ctvr run` and `ctvr table` on the small stream."""

import multiprocessing
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ctvr.orchestrator.errors import StoreError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs import run as run_command
from ctvr.orchestrator.jobs.cache import recent_runs
from ctvr.orchestrator.jobs.run import run
from ctvr.orchestrator.jobs.run_text import low_rates, slow_precision, start_text
from ctvr.orchestrator.on_ray.plan import GAIN
from ctvr.orchestrator.settings.resolve import build_experiment, resolve
from ctvr.orchestrator.sweeps.table import table
from ctvr.orchestrator.tracking.run_record import RunRecord
from tests.refusing import refuses


@pytest.fixture
def execution(runs: Path) -> ExecutionConfig:
    return ExecutionConfig(runs=runs)


@pytest.mark.slow
def test_a_run_is_recorded_and_goes_on_where_it_ended(execution, manifest, capsys):
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": "1"}
    text, found, following = run(settings, (), execution).partition("\nnext: ctvr table small")
    assert text.startswith("clip4clip on small, test videos\n")
    assert "text to video" in text
    assert found
    assert "ctvr search " in following
    assert "task 3/3  R@1" in capsys.readouterr().err
    assert run(settings, (), execution).startswith(f"{text}\nnext: ")
    assert "nothing was trained (--fresh trains again)" in capsys.readouterr().err
    (recorded,) = execution.tracker().find_runs()
    assert [step for step, _ in recorded.metrics[GAIN]] == [1, 2, 3]


@pytest.mark.parametrize("method", ["zero_shot", "clip4clip"])
def test_a_run_resolves_its_settings_once(execution, manifest, method):
    """It builds one other experiment on its stream: the zero-shot reference, from the resolved one."""
    resolved, built = [], []

    def note(frame, event, _):
        if event == "call" and frame.f_code is resolve.__code__:
            resolved.append(frame.f_back.f_code.co_name)
        if event == "call" and frame.f_code is build_experiment.__code__:
            built.append(tuple(frame.f_locals["layers"]["you"][name] for name in ("method", "stream")))

    sys.setprofile(note)
    try:
        run({"method": method, "stream": manifest, "optim.epochs": "1"}, (), execution)
    finally:
        sys.setprofile(None)
    assert resolved == ["train"]
    assert [name for name, stream in built if stream == manifest] == [method, "zero_shot"]


def test_a_run_says_that_a_gpu_with_other_precisions_computes_in_full_float32(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    (line,) = slow_precision("cuda", "fp32")
    assert "precision=bf16 can be faster on NVIDIA H100" in line
    assert slow_precision("cuda", "bf16") == slow_precision("cpu", "fp32") == []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert slow_precision("cuda", "fp32") == []


def test_rates_that_leave_imported_features_unchanged_are_named_with_a_remedy():
    vectors = {"backbone.name": "vectors", "backbone.weights": "imported"}

    def found(recommended, **settings):
        return low_rates(resolve({"stream": "s", **settings}, recommended))

    (line,) = found(vectors, method="clip4clip", **{"method.lr": 1e-6, "method.lr_head": 1e-5})
    assert line.endswith("Use method.lr_head=0.001")
    (line,) = found(vectors, method="lwf", **{"base.lr": 1e-6, "base.lr_head": 0})
    assert line.endswith("Use base.lr=0.001")
    assert not found(vectors, method="clip4clip")
    assert not found(vectors, method="clip4clip", **{"method.lr": 1e-6, "optim.lr_scale": 1000})
    assert not found(vectors, method="head_ridge")
    assert not found({}, method="clip4clip", **{"method.lr": 1e-6})


def test_a_run_on_a_gpu_names_the_memory_of_a_finished_one(execution, manifest, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.sweeps.measured_memory.memory_text", lambda *_: ["3.0 GiB in run 1"])
    described = resolve({"method": "lora", "stream": manifest, "precision": "bf16"})

    def text_on(device: str) -> str:
        stream, tracker = execution.load_stream(manifest), execution.tracker("small")
        return start_text(described, stream, device, "runs", tracker)

    assert "\n  memory    3.0 GiB in run 1\n" in text_on("cuda")
    assert "memory" not in text_on("cpu")


def _train_and_die(settings: dict[str, str], execution: ExecutionConfig, after: int) -> None:
    """Run `ctvr run` until a task is done, then kill it by SIGKILL."""

    def progress(metrics: object) -> str:
        done.append(metrics)
        if len(done) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return ""

    done: list[object] = []
    run_command.progress_text = progress
    run(settings, (), execution)


def test_a_killed_run_is_continued_and_has_every_point_once(execution, manifest, capfd):
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": "1"}
    for after in (1, 1):
        process = multiprocessing.get_context("fork").Process(target=_train_and_die, args=(settings, execution, after))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        (left,) = execution.existing_tracker().find_runs()
        assert left.status == "RUNNING"
    assert not recent_runs(execution.existing_tracker(), -1)
    run(settings, (), execution)
    tracker = execution.tracker()
    (found,) = tracker.find_runs()
    assert (found.run_id, found.status, found.tags["ctvr.complete"]) == (left.run_id, "FINISHED", "true")
    for key in found.metrics:
        steps = [point.step for point in tracker.client.get_metric_history(found.run_id, key)]
        assert len(steps) == len(set(steps)), key
    assert [step for step, _ in found.metrics[GAIN]] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "KILLED"), (StoreError("disk full"), "FAILED")])
def test_a_stopped_or_failed_run_is_closed_and_can_be_continued(execution, manifest, monkeypatch, error, status):
    def fail(metrics: object) -> str:
        raise error

    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(run_command, "progress_text", fail)
        with pytest.raises(type(error)):
            run(settings, (), execution)
    (left,) = execution.existing_tracker().find_runs()
    assert left.status == status
    run(settings, (), execution)
    assert sorted(each.status for each in execution.existing_tracker().find_runs()) == ["FINISHED"]


def test_a_complete_run_is_recorded_once_unless_it_is_trained_again_or_removed(execution, manifest, capfd):
    settings = {"method": "zero_shot", "stream": manifest}

    def records() -> dict[str, RunRecord]:
        return {each.run_id: each for each in execution.tracker().find_runs()}

    run(settings, (), execution)
    ((first, record),) = records().items()
    capfd.readouterr()
    text = run(settings, (), execution)
    assert list(records()) == [first]
    assert first[:8] in text
    assert record.name in "".join(capfd.readouterr().err.split())  # lines are wrapped
    assert records()[first].metrics == record.metrics  # no value a second time
    run({**settings, "seed": "1"}, (), execution)
    run(settings, (), execution, keep_model=True)
    assert len(records()) == 3
    execution.tracker().client.delete_run(first)
    run({**settings, "data.batch_size": "3"}, (), execution)
    assert first not in records()
    assert len(records()) == 3


@pytest.mark.slow
def test_runs_that_start_in_one_second_are_recorded_each(execution, manifest, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.sweeps.run_names.time", SimpleNamespace(strftime=lambda form: "1125-000000"))
    for frames in ("2", "3"):
        run({"method": "zero_shot", "stream": manifest, "data.num_frames": frames}, (), execution)
    found = execution.tracker().find_runs()
    assert [each.settings["data.num_frames"] for each in found] == ["2", "3"]
    assert len({each.name for each in found}) == 2


def test_unwritable_store_is_refused_before_rendering(tmp_path):
    (tmp_path / "file").touch()
    execution = ExecutionConfig(runs=tmp_path / "runs", store=str(tmp_path / "file" / "store"))
    with refuses("file/store", where="store"):
        run({"method": "zero_shot", "stream": "shapes-5"}, (), execution)
    assert not execution.runs.exists()


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"backbone.name": "ViT-B/32"}, "'ViT-B/32' ViT-B-32"),
        ({"backbone.weights": "laion"}, "'laion'"),
        ({"backbone.weights": ""}, "''"),
        ({"backbone.weights": "./clip.pt"}, "clip.pt"),
        ({"backbone.weights": "https://host/clip.pt"}, "backbone.weights='https://host/clip.pt'"),
        ({"workers": 2}, "workers"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, settings, values):
    monkeypatch.chdir(tmp_path)
    with refuses(*values.split()):
        run({"method": "clip4clip", "stream": "shapes-5", **settings}, (), ExecutionConfig(runs=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    assert capsys.readouterr().err == ""


def test_a_table_is_of_complete_runs(execution, manifest):
    with refuses(where="--runs"):
        table(execution, stream="small")
    assert not (execution.runs / "mlflow.db").exists()
    run({"method": "zero_shot", "stream": manifest}, (), execution)
    with refuses("'large'", "small", where="table"):
        table(execution, stream="large")
    text = table(execution, stream="small")
    assert "\nzero_shot " in text
    folder = Path(re.search(r"written: (\S+) \(3 files; with --figures also figures\)", text)[1])
    assert {file.suffix for file in folder.iterdir()} == {".md", ".tex", ".csv"}
    count = re.search(r"written: \S+ \((\d+) files\)", table(execution, stream="small", figures=True))[1]
    drawn = {file: file.read_bytes() for file in folder.iterdir() if file.suffix in {".png", ".pdf"}}
    assert len(drawn) == int(count) - 3 > 0
    first, *_ = sorted(drawn)
    first.write_bytes(b"of former numbers")
    assert f"({count} files)" in table(execution, stream="small")
    assert {file: file.read_bytes() for file in drawn} == drawn
