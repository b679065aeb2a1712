"""Records of the release before names changed still load (fixtures_0_2/make_fixtures.py)."""

import csv
import shutil
import zipfile
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ctvr.orchestrator import renamed
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs import load_model
from ctvr.orchestrator.jobs.find_model import find_run
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.manifest import read_json
from ctvr.orchestrator.text_files import read_text
from tests.small_stream import write_stream

ZIP = Path(__file__).parent / "fixtures_0_2" / "records.zip"


@pytest.fixture(scope="module")
def _unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    with zipfile.ZipFile(ZIP) as file:
        file.extractall(folder)
    write_stream(folder / "small", num_tasks=2)
    return folder


@pytest.fixture
def records(_unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the records into the current folder, since a relative path names the stream."""
    shutil.copytree(_unpacked, tmp_path / "records")
    monkeypatch.chdir(tmp_path / "records")
    return tmp_path / "records"


def _values(settings: Settings) -> set[str]:
    return {str(value) for value in settings.values()}


def test_the_table_of_old_runs_has_the_numbers_that_it_had(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> list[dict[str, str]]:
        return list(csv.DictReader(read_text(records / "runs/tables/small/small.csv").splitlines()))

    def is_number(cell: str) -> bool:
        return cell.replace(".", "", 1).isdigit()

    before = rows()
    assert main(["table", "--stream", "small", "--runs", "runs"]) == 0
    assert "prompt" in capsys.readouterr().out
    old = [{name: cell for name, cell in row.items() if is_number(cell)} for row in before]
    assert len(old[0]) > 20
    assert [{name: row[name] for name in known} for known, row in zip(old, rows(), strict=True)] == old


def test_runs_of_mlflow_have_settings_that_are_known_today(records: Path) -> None:
    runs = ExecutionConfig(runs=records / "runs").existing_tracker().find_runs(stream="small")
    assert "0.01" in {value for run in runs for value in run.settings.values()}
    for run in runs:
        assert not set(run.settings) & set(renamed.SETTINGS)
        assert not set(run.settings) & {f"method.{name}" for name in ("reducer", *renamed.REDUCTION)}
    assert "none" in {run.settings.get("method.reducer.name") for run in runs}


def test_an_old_plan_is_read_with_every_setting(records: Path) -> None:
    plan = renamed.record(read_json(records / "runs/sweeps/old/plan.json"))
    overrides = plan["request"]["overrides"]
    experiment = resolve({**overrides, "method": "prompt", "stream": "small/small.json"})
    assert {"0.01", "1"} <= _values(overrides)
    assert set(overrides) <= set(experiment.settings)


def test_an_exported_model_and_a_commit_load_and_answer(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of the model gets its weights from the commit, since they are too large for a fixture."""
    execution = ExecutionConfig(runs=records / "runs")
    stream = load_stream("small/small.json", execution.runs)
    restored = load_model._restored(find_run("prompt", execution), execution, stream, len(stream.tasks))
    state = {name: value.contiguous().clone() for name, value in restored.method.state_dict().items()}
    save_file(state, str(records / "model" / "model.safetensors"))
    assert main(["search", "a red circle", "--model", "model", "--gallery", "small/videos", "--runs", "runs"]) == 0
    assert "red_test_0" in capsys.readouterr().out


def test_the_page_of_an_old_sweep_is_written(records: Path) -> None:
    assert main(["report", "old", "--runs", "runs"]) == 0
