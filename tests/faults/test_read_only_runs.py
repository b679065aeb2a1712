"""Read-only runs folders: reading commands work and write nothing there; writing commands give one line."""

import hashlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.tracking import readable
from ctvr.orchestrator.tracking.outbox import Outbox
from tests.read_only import read_only


@pytest.fixture
def moved(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Move a copy of learned runs, whose records contain the former addresses, next to the current folder."""
    shutil.copytree(learned, tmp_path / "runs")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("CTVR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(readable.tempfile, "tempdir", str(tmp_path / "here"))
    readable._make_copy.cache_clear()
    yield tmp_path / "runs"
    readable._make_copy.cache_clear()


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


READING = (
    "runs",
    "runs show framefusion_moe",
    "table small",
    "runs explain framefusion_moe",
    "report small --html page.html",
    "cache",
    "cache verify",
    "cache gc --older-than 30",
)


@pytest.mark.timeout(240)
def test_commands_that_read_write_nothing_and_find_the_files_of_a_moved_folder(moved, capsys):
    before = contents(moved)
    with read_only(moved):
        for command in READING:
            status = main([*command.split(), "--runs", "../runs"])
            said = capsys.readouterr()
            assert status == 0, (command, said.err)
            assert "Traceback" not in said.err, command
            if command == "runs show framefusion_moe":
                assert f"files     {moved}/artifacts/small/" in said.out
            if command == "table small":
                assert "zero_shot" in said.out
                assert "not written: " in said.out
    assert contents(moved) == before
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    "command", ["run zero_shot ../runs/small/small.json", "runs rm RUN --yes", "runs sync --rebuild", "runs sync"]
)
def test_commands_that_write_are_refused_in_one_line(moved, command, capsys):
    Outbox(moved / "outbox").add("offline-1", {"op": "tags", "values": {"a": "b"}})
    command = command.replace("RUN", ExecutionConfig(runs=moved).existing_tracker().find_runs()[0].run_id)
    before = contents(moved)
    with read_only(moved):
        assert main([*command.split(), "--runs", "../runs"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("ctvr: ")
    assert "/runs" in last
    assert contents(moved) == before


def test_a_change_that_a_killed_writer_left_is_undone_in_the_copy(moved, capsys):
    """SQLite must write to read such a file."""
    file, journal = moved / "mlflow.db", moved / "mlflow.db-journal"
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")  # changes reach the file before the end of the transaction
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE tags SET value = 'other' WHERE key = 'ctvr.method'")
        database.execute("CREATE TABLE more AS SELECT * FROM metrics")
        halfway = {path: path.read_bytes() for path in (file, journal)}
        database.execute("ROLLBACK")
    for path, content in halfway.items():
        path.write_bytes(content)
    with read_only(moved):
        assert main(["runs", "--runs", "../runs"]) == 0
    said = capsys.readouterr().out
    assert "framefusion_moe" in said
    assert "other" not in said
    assert {path: path.read_bytes() for path in halfway} == halfway


def test_a_damaged_file_is_named_and_not_its_copy(moved, capsys):
    (moved / "mlflow.db").write_bytes(b"no database" * 999)
    with read_only(moved):
        assert main(["runs", "--runs", "../runs"]) == 2
    said = capsys.readouterr().err
    assert f"{moved.parent}/runs/mlflow.db" in said
    assert "ctvr-records-" not in said


def test_a_moved_folder_on_a_full_disk_is_read(learned, tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk]).returncode:
        pytest.skip("a file system can only be made by root")
    try:
        shutil.copytree(learned, disk / "runs", ignore=shutil.ignore_patterns("store", "small"))
        with (disk / "fill").open("wb", buffering=0) as fill, suppress(OSError):
            while True:
                fill.write(bytes(1 << 12))
        assert not shutil.disk_usage(disk).free
        assert main(["runs", "show", "framefusion_moe", "--runs", str(disk / "runs")]) == 0
        assert f"files     {disk}/runs/artifacts/small/" in capsys.readouterr().out
        assert main(["table", "small", "--runs", str(disk / "runs")]) == 0
        assert "not written: " in capsys.readouterr().out
        assert not list((disk / "runs").rglob(".*"))
    finally:
        subprocess.run(["umount", disk], check=True)
