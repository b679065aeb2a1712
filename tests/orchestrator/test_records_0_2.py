"""The database of an earlier commit still opens, though settings had other names (fixtures_0_2/make_fixtures.py)."""

import csv
import zipfile
from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.text_files import read_text
from tests.small_stream import write_stream

ZIP = Path(__file__).parent / "fixtures_0_2" / "records.zip"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack the records into the current folder, since a relative path names the stream."""
    with zipfile.ZipFile(ZIP) as file:
        file.extractall(tmp_path)
    write_stream(tmp_path / "small", num_tasks=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_an_old_name_in_a_stored_record_is_refused_in_one_line(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "old", "--runs", "runs"]) == 2
    assert capsys.readouterr().err.startswith("ctvr: repeatable: ")
