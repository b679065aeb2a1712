"""Runs read without MLflow equal those that its client reads from the same file."""

import math
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tracking import tracker as tracking
from ctvr.orchestrator.tracking.run_record import artifact_folder
from ctvr.orchestrator.tracking.sqlite_records import SqliteRecords
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import missing_from, refuses


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    """Return records with all that may differ: NaN, infinity, a step stored twice, open, deleted and nameless runs."""
    runs = tmp_path_factory.mktemp("runs")
    uri = f"sqlite:///{runs}/mlflow.db"
    tracking.create_store(uri, runs, "shapes-5")
    made = Tracker(uri, runs)
    sweep = made.open_sweep("s'1", "shapes-5", {"trials": 2}, {"who": 'a "quoted" name'})
    for number in range(3):
        run = made.open_run("shapes-5", f"lwf-{number}", {"seed": number, "note": None}, sweep)
        made.log_task(run, 1, {"r1": 10.0 + number, "bad": math.nan, "large": math.inf, "low": -math.inf})
        made.log_task(run, 2, {"r1": 20.0 + number})
        made.client.log_metric(run, "twice", 1.0, timestamp=5, step=1)
        made.client.log_metric(run, "twice", 2.0, timestamp=9, step=1)
        if number:
            made.close(run, "KILLED")
    other = made.open_run("shapes-10", "other", {})
    made.client.set_tag(other, "empty", "")
    made.client.delete_run(made.open_run("shapes-5", "deleted", {}))
    gone = made.experiment("gone")
    made.open_run("gone", "in a deleted experiment", {})
    made.client.delete_experiment(gone)
    return made


@pytest.mark.parametrize("stream", [None, "shapes-5", "shapes-10", "gone", "unknown"])
@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ({}, None),
        ({"ctvr.kind": "trial"}, None),
        ({"ctvr.kind": "trial", "ctvr.sweep": "s'1"}, None),
        ({"who": 'a "quoted" name'}, None),
        ({}, "RUNNING"),
        ({"ctvr.kind": "trial"}, "KILLED"),
        ({"ctvr.kind": "nothing"}, None),
    ],
)
def test_runs_are_those_that_the_client_finds(tracker, stream, tags, status):
    sender = tracker._sender
    records = SqliteRecords.of(tracker.uri)
    assert records is not None
    found, expected = records.search(stream, tags, status), sender._search_by_client(stream, tags, status)
    assert list(map(repr, found)) == list(map(repr, expected))  # NaN is not equal to itself


def test_histories_are_those_of_the_client(tracker):
    for run in tracker.find_runs("shapes-5"):
        for key in run.metrics:
            expected = {m.step: m.value for m in tracker.client.get_metric_history(run.run_id, key)}
            assert repr(run.metrics[key]) == repr(sorted(expected.items()))
        assert run.metrics["twice"] == [(1, 2.0)]


def test_artifacts_are_where_the_client_puts_and_finds_them(tracker, tmp_path):
    run = tracker.find_runs("shapes-5")[0].run_id
    (tmp_path / "page é.html").write_text("page")
    tracker.log_artifacts(run, [tmp_path / "page é.html"], into="page")
    assert [each.path for each in tracker.client.list_artifacts(run, "page")] == ["page/page é.html"]
    assert tracker.download(run, "page").is_dir()
    tracker.log_json(run, "config", {"a": 1})
    assert tracker.download(run, "config.json").read_text() == '{\n "a": 1\n}\n'
    with pytest.raises(FileNotFoundError, match="no readable artifact 'missing'"):
        tracker.download(run, "missing")


def test_unknown_schema_damage_and_servers_are_left_to_mlflow(tracker, tmp_path):
    copy = tmp_path / "mlflow.db"
    shutil.copy(tracker.uri.removeprefix("sqlite:///"), copy)
    assert SqliteRecords.of(f"sqlite:///{copy}") is not None
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    assert SqliteRecords.of(f"sqlite:///{copy}") is None
    copy.write_bytes(b"no database")
    assert SqliteRecords.of(f"sqlite:///{copy}") is None
    assert SqliteRecords.of(f"sqlite:///{tmp_path / 'missing.db'}") is None
    assert not (tmp_path / "missing.db").exists()
    assert SqliteRecords.of("http://127.0.0.1:5000") is None


def test_reading_imports_no_mlflow(tracker):
    code = (
        "import sys; from pathlib import Path; from ctvr.orchestrator.execution import ExecutionConfig\n"
        "found = ExecutionConfig(Path(sys.argv[1])).existing_tracker().find_runs('shapes-5')\n"
        "assert found[0].metrics['r1'] == [(1, 10.0), (2, 20.0)], found[0].metrics['r1']\n"
        "print(sorted({'mlflow', 'sqlalchemy', 'torch', 'ray'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, str(tracker.runs)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE runs SET start_time = 'soon'", "runs, start_time: 'soon'"),
        ("UPDATE tags SET value = x'00ff' WHERE key = 'ctvr.sweep'", "tags, ctvr.sweep: b'"),
        ("UPDATE params SET value = x'00ff' WHERE key = 'seed'", "params, seed: b'"),
        ("UPDATE params SET value = 'two' WHERE key = 'seed'", "seed: 'two'"),
        ("INSERT INTO tags SELECT 'ctvr.place', 'first', run_uuid FROM runs", "ctvr.place: 'first'"),
        ("UPDATE latest_metrics SET value = 'high' WHERE key = 'r1'", "metric r1 at step 2: 'high'"),
        ("UPDATE latest_metrics SET step = 'last' WHERE key = 'r1'", "metric r1 at step last: "),
        ("UPDATE metrics SET value = 'high' WHERE key = 'r1'", "metric r1 at step 1: 'high'"),
        ("UPDATE tags SET key = 'ctvr.commits', value = '../../x' WHERE key = 'ctvr.sweep'", "ctvr.commits: '../../x'"),
        ("UPDATE tags SET key = 'ctvr.result', value = 'a b' WHERE key = 'ctvr.sweep'", "ctvr.result: 'a b'"),
        ("UPDATE runs SET name = NULL, status = NULL, artifact_uri = NULL", ""),
        ("UPDATE tags SET value = NULL WHERE key = 'ctvr.sweep'", ""),
        ("UPDATE params SET value = CAST(x'ff41' AS TEXT) WHERE key = 'note'", ""),
    ],
)
def test_a_value_of_another_type_is_named_in_one_line(tracker, tmp_path, change, said):
    shutil.copy(tracker.uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute(change)
    read = Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)

    def values(strict: bool = True) -> list[object]:
        return [run.metrics["r1"] for run in read.find_runs("shapes-5", strict=strict)]

    if not said:
        assert len(values()) == 3
        return
    with refuses(*said.replace(":", "").replace(",", "").split()):
        values()


def test_a_damaged_run_is_named_once_and_left_out_except_where_others_are_deleted(tracker, tmp_path, caplog):
    shutil.copy(tracker.uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    whole = [run.run_id for run in tracker.find_runs("shapes-5")]
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("UPDATE params SET value = x'00ff' WHERE key = 'seed' AND run_uuid = ?", (whole[1],))
    read = Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    for _ in range(2):
        assert [run.run_id for run in read.find_runs("shapes-5")] == [whole[0], whole[2]]
    (line,) = [record.getMessage() for record in caplog.records]
    assert whole[1] in line
    assert not missing_from(line, "params", "seed")
    with pytest.raises(ConfigError, match=whole[1]):
        read.find_runs("shapes-5", strict=True)


def test_a_field_missing_in_a_record_is_named_in_one_line(tracker):
    run = tracker.find_runs("shapes-5")[0]
    assert run.settings.get("method") is None
    for texts, kind in ((run.settings, "parameter"), (run.tags, "tag")):
        with refuses(run.run_id[:8], kind, "method", "rm"):
            texts["method"]


def test_a_folder_that_is_not_the_runs_is_no_folder_of_its_files(tmp_path):
    run = "f" * 32
    for address, found in (
        (f"file:///a%20b/{run}/artifacts", Path(f"/a b/{run}/artifacts")),
        (f"/a%20b/{run}/artifacts", Path(f"/a%20b/{run}/artifacts")),
        ("file:///", None),
        ("file:///home/user", None),
        ("", None),
        (f"{run}/artifacts", None),
        (f"mlflow-artifacts:/1/{run}/artifacts", None),
    ):
        assert artifact_folder(run, address, Path("/")) == found, address
        assert artifact_folder(run, address, tmp_path) is None  # it is not below the runs folder


def test_a_file_that_is_no_database_is_one_line(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    with refuses("tracking", "Move", "repair"):
        Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path).find_runs()
