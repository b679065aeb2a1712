"""Location of records: a local file by default, and one line for every error."""

import os
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tracking import server
from ctvr.orchestrator.tracking.server import check, default_uri, ui_command
from ctvr.orchestrator.tracking.tracker import Tracker, create_store
from tests.refusing import missing_from, refuses


def test_the_default_is_sqlite_unless_the_environment_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://head:5000")
    assert default_uri(tmp_path) == "http://head:5000"


def test_a_server_that_is_down_is_one_line_with_a_remedy(monkeypatch, free_port):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7")
    uri = f"http://user:secret@127.0.0.1:{free_port}"
    with pytest.raises(ConfigError) as caught:
        check(uri)
    message = str(caught.value)
    assert "\n" not in message
    assert "secret" not in message
    assert not missing_from(message, "connection", "refused", "Start", "server")
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "7"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("HTTPConnectionPool(host='127.0.0.1', port=51401): Connection refused", "Start the server"),
        ("Failed to establish a connection to http://10.0.0.403:40100/api/2.0", "Start the server"),
        ("API request to endpoint /api/2.0/mlflow failed with error code 401 != 200", "MLFLOW_TRACKING_USERNAME"),
        ("403 Client Error: Forbidden for url: http://head:5000/api", "MLFLOW_TRACKING_USERNAME"),
    ],
)
def test_a_port_is_not_a_status_of_http(text, advice, monkeypatch):
    monkeypatch.setattr(server, "proxy_of", lambda uri: "")
    assert advice in server.remedy_for(Exception(text), "http://head:5000")


def test_a_folder_of_files_is_refused_with_the_sqlite_form():
    with pytest.raises(ConfigError, match=r"sqlite:////tmp/mlruns/mlflow\.db"):
        check("/tmp/mlruns")


@pytest.mark.parametrize("uri", ["databricks", "databricks-uc"])
def test_a_databricks_workspace_is_not_called_a_folder(uri):
    with refuses("Databricks", where=f"tracking {uri}", remedy=True) as caught:
        check(uri)
    assert "sqlite" not in str(caught.value)


def test_the_driver_of_a_database_is_named_as_its_package():
    missing = ModuleNotFoundError("No module named 'psycopg2'", name="psycopg2")
    assert "pip install psycopg2-binary" in server.remedy_for(missing, "postgresql+psycopg2://h/x")


def test_the_ui_listens_on_this_machine_and_refuses_what_cannot_work(tmp_path, free_port):
    uri, port = f"sqlite:///{tmp_path}/mlflow.db", free_port
    command = ui_command(uri, port=port)
    assert command[3:5] == ["mlflow", "server"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--artifacts-destination") + 1] == str(tmp_path / "artifacts")
    for host in ("0.0.0.0", "::", "", "192.168.0.7", "head"):
        with refuses("cluster/services.sh", where=f"--host {host}"):
            ui_command(uri, host, port)
    with refuses("http://head:5000"):
        ui_command("http://head:5000")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with refuses(taken.getsockname()[1]):
            ui_command(uri, port=taken.getsockname()[1])


def test_a_database_that_disappears_is_one_line_and_no_traceback_of_mlflow(tmp_path, caplog, capfd):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_store(uri, tmp_path, "small")
    tracker = Tracker(uri, tmp_path)
    run = tracker.open_run("small", "one", {})
    (tmp_path / "mlflow.db").unlink()
    tracker.log_task(run, 1, {"r1": 1.0})
    assert "(raised as a result" not in caplog.text
    (line,) = [record.getMessage() for record in caplog.records if "Training continues" in record.getMessage()]
    assert "readonly database" in line or "no such table" in line
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("uri", "named"),
    [("sqlite://runs/mlflow.db", "sqlite:///runs/mlflow.db"), ("sqlite:runs/mlflow.db", "sqlite:///runs/mlflow.db")],
)
def test_an_address_of_a_file_with_too_few_slashes_is_corrected(uri, named):
    with refuses(named, where=f"tracking {uri}"):
        check(uri)


def test_a_folder_whose_name_is_not_utf8_is_named(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    folder.mkdir()
    with refuses(where=str(folder)):
        check(f"sqlite:///{folder}/mlflow.db")


def test_a_check_does_not_wait_for_a_database_that_another_process_has_locked(tmp_path, monkeypatch):
    file = tmp_path / "mlflow.db"
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE experiments (a)")
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        check(f"sqlite:///{file}")
        assert time.monotonic() - began < 30  # not WAIT_SECONDS


@pytest.mark.parametrize(
    ("given", "bare", "variables"),
    [
        ("postgresql://me:p%2Fw@h:5432/ml", "postgresql://h:5432/ml", {"PGUSER": "me", "PGPASSWORD": "p/w"}),
        ("postgresql+psycopg2://me@h/ml", "postgresql+psycopg2://h/ml", {"PGUSER": "me", "PGPASSWORD": "kept"}),
        ("http://me@h:5000", "http://h:5000", {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "kept"}),
    ],
)
def test_user_and_password_of_an_address_go_where_its_driver_reads_them(given, bare, variables, monkeypatch, tmp_path):
    for name in variables:
        monkeypatch.setenv(name, "kept")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert default_uri(tmp_path) == bare
    assert {name: os.environ[name] for name in variables} == variables


def test_a_password_that_a_driver_reads_only_from_the_address_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mysql://me:geheim@h/ml")
    with refuses("password", where="tracking mysql://h/ml", remedy=True) as caught:
        default_uri(tmp_path)
    assert "geheim" not in str(caught.value)


def test_a_database_that_refuses_is_tried_once(monkeypatch):
    from mlflow.store.db import utils

    tried = []

    def refuse(uri):
        tried.append(uri)
        raise ConnectionError('password authentication failed for user "me"')

    monkeypatch.setattr("ctvr.orchestrator.tracking.server.connect_once", refuse)
    monkeypatch.setattr(utils, "create_sqlalchemy_engine", refuse)
    monkeypatch.setattr(utils.time, "sleep", lambda seconds: None)
    with refuses("password authentication failed", where="tracking postgresql://h/ml", remedy=True) as caught:
        check("postgresql://h/ml")
    assert tried == ["postgresql://h/ml"]
    assert not missing_from(str(caught.value), "MLFLOW_TRACKING_URI")
