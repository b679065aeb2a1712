"""A folder from elsewhere names hosts and files of its author's choice: no secret of the user reaches them."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socketserver
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator import addresses
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray import connection
from ctvr.orchestrator.on_ray.plan import read_plan, write_plan
from ctvr.orchestrator.sweeps.session import restore_execution, resume_options, trial_plan
from ctvr.orchestrator.tracking.internals import LOCATIONS
from ctvr.orchestrator.tracking.server import default_uri, ui_command
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import missing_from, refuses

MARK = "pl4nted"  # part of every secret
Plant = Callable[[Path, str], None]


class Listener(socketserver.ThreadingTCPServer):
    """Records what it hears, and asks every client for a password."""

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Answer)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(5)
        with suppress(OSError):
            self.server.heard.append(self.request.recv(1 << 16))  # type: ignore[attr-defined]
            self.request.sendall(
                b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n"
            )


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Start a listener; the user has every kind of secret, and a proxy keeps all traffic on this machine."""
    home = tmp_path / "home"
    for name, text in {
        ".mlflow/credentials": f"[mlflow]\nmlflow_tracking_username = u\nmlflow_tracking_password = {MARK}f\n",
        ".netrc": f"machine 127.0.0.1 login u password {MARK}n\ndefault login u password {MARK}d\n",
        ".aws/credentials": f"[default]\naws_access_key_id = {MARK}a\naws_secret_access_key = {MARK}b\n",
        ".ray/auth_token": f"{MARK}r",
        ".cache/huggingface/token": f"hf_{MARK}h",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o600)
    monkeypatch.setattr("os.environ", os.environ.copy())
    with Listener() as found:
        given = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "RAY_AUTH_TOKEN", "HF_TOKEN")
        given += ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_TOKEN")
        os.environ.update({name: f"{MARK}-{name.lower()}" for name in given})
        os.environ.update({"HOME": str(home), "RAY_AUTH_MODE": "token", "RAY_TMPDIR": str(tmp_path / "r")})
        os.environ.update(dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"http://127.0.0.1:{found.port}"))
        yield found
        found.shutdown()


def rows(table: str, column: str) -> Plant:
    def plant(runs: Path, address: str) -> None:
        with closing(sqlite3.connect(runs / "mlflow.db")) as database, database:
            database.execute(f"UPDATE {table} SET {column} = ?", [address])

    return plant


def field(*names: str) -> Plant:
    """Plant a field of the plan of sweep `s`."""

    def plant(runs: Path, address: str) -> None:
        folder = runs / "sweeps" / "s"
        if not (folder / "plan.json").exists():
            theirs = ExecutionConfig(runs=Path("/home/them/runs"))
            request = {"method": "clip4clip", "stream": str(runs / "small/small.json"), "name": "s", "overrides": {}}
            write_plan(trial_plan(theirs, "s"), folder, request=request, where=resume_options(theirs))
        kept = json.loads((folder / "plan.json").read_text())
        kept.setdefault(names[0], {})[names[1]] = address
        (folder / "plan.json").write_text(json.dumps(kept))

    return plant


def artifact(name: str, key: str) -> Plant:
    """Plant a value in a JSON file of a run's artifacts."""

    def plant(runs: Path, address: str) -> None:
        for file in runs.glob(f"artifacts/**/{name}"):
            saved = json.loads(file.read_text())
            (saved["settings"] if name == "model.json" else saved)[key] = address
            file.write_text(json.dumps(saved))

    return plant


def manifest(runs: Path, address: str) -> None:
    file = runs / "small" / "small.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "videos": address}))


def waiting(runs: Path, address: str) -> None:
    """Plant an unsent record: a file for a run whose artifacts are elsewhere."""
    rows("runs", "artifact_uri")(runs, address)
    with closing(sqlite3.connect(runs / "mlflow.db")) as database:
        (run,) = database.execute("SELECT run_uuid FROM runs").fetchone()
    (runs / "outbox").mkdir(exist_ok=True)
    record = {"op": "text", "name": "note.txt", "text": "x"}
    (runs / "outbox" / f"{run}.jsonl").write_text(json.dumps(record) + "\n")


PLACES: dict[str, Plant] = {
    **{f"{table}.{column}": rows(table, column) for table, column in LOCATIONS},
    **{f"plan.{name}": field("plan", name) for name in ("store", "storage", "videos", "tracking_uri", "root")},
    "where.address": field("where", "address"),
    "config.json": artifact("config.json", "stream"),
    "config.json weights": artifact("config.json", "backbone.weights"),
    "model.json": artifact("model.json", "backbone.weights"),
    "manifest": manifest,
    "outbox": waiting,
}
FORMS = (
    *(
        "http://127.0.0.1:PORT/api/2.0/mlflow-artifacts/artifacts/x",
        "https://127.0.0.1:PORT/x",
        "HTTP://127.0.0.1:PORT/x",
    ),
    *(
        "mlflow-artifacts://127.0.0.1:PORT/x",
        "mlflow-artifacts:/x",
        "http://u:p@127.0.0.1:PORT/x",
        "http://[::1]:PORT/x",
    ),
    *("http://localhost:PORT/x", "s3://bucket/x", "s3://bucket/x?endpoint_override=127.0.0.1:PORT", "gs://bucket/x"),
    *("wasbs://c@127.0.0.1:PORT/x", "abfss://c@127.0.0.1:PORT/x", "sftp://127.0.0.1:PORT/x", "ftp://127.0.0.1:PORT/x"),
    *("hdfs://127.0.0.1:PORT/x", "dbfs:/x", "models:/m/1", "runs:/0/x", "127.0.0.1:PORT", "ray://127.0.0.1:PORT"),
    *("file://127.0.0.1:PORT/x", "file:///etc", "/etc", "//127.0.0.1:PORT/x", "hf-hub:127.0.0.1/x", "memory://x"),
)
COMMANDS = (
    *("search x --model framefusion_moe", "search x --model best-small", "export hf OUT --model framefusion_moe"),
    *(
        "plot --model framefusion_moe",
        "table --stream small",
        "report small",
        "runs --all",
        "runs show framefusion_moe",
    ),
    *("runs sync", "runs sync --rebuild", "runs explain framefusion_moe", "cache", "cache verify", "streams"),
    "streams check SMALL",
    *("streams export SMALL OUT --hf", "streams export SMALL OUT --files", "rerun --sweep s", "sweep --resume s"),
    *("run --method zero_shot --stream SMALL", "methods", "ui --port 1024"),
)


def attack(runs: Path, place: str, form: str, command: str, listener: Listener) -> int:
    """Plant an address in a copied folder and run a command there; return its exit status."""
    PLACES[place](runs, form.replace("PORT", str(listener.port)))
    words = command.replace("SMALL", str(runs / "small/small.json")).replace("OUT", str(runs.parent / "out"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", lambda *words: None)
        patch.setattr(connection.ray, "init", _no_cluster)
        return main([*words.split(), *([] if command == "methods" else ["--runs", str(runs)])])


def _no_cluster(address: str = "", **more: Any) -> None:
    """Refuse to start or join Ray, after the address was chosen."""
    assert address in ("local", "auto"), f"the cluster {address} of the file would be joined"
    raise ConfigError("no cluster in this test")


def drawn(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Draw plantings; the first ones cover each place, form and command."""
    draw = random.Random(seed)
    lists = [draw.sample(each, len(each)) for each in (list(PLACES), FORMS, COMMANDS)]
    cycles = zip(*map(itertools.cycle, lists))
    first = list(itertools.islice(cycles, max(map(len, lists))))
    return [*first, *(tuple(map(draw.choice, lists)) for _ in range(count))][:count]  # type: ignore[misc]


def hears_nothing(planting: tuple[str, str, str], learned: Path, tmp_path: Path, listener: Listener) -> None:
    runs = shutil.copytree(learned, tmp_path / "runs")
    try:
        assert attack(runs, *planting, listener) in (0, 1, 2), planting
        said = b"".join(listener.heard)
        assert MARK.encode() not in said, planting
        assert not listener.heard, planting
    finally:
        shutil.rmtree(runs)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("planting", drawn(12, 52), ids=" | ".join)
def test_a_drawn_address_hears_no_secret(planting, learned, tmp_path, listener):
    hears_nothing(planting, learned, tmp_path, listener)


@pytest.mark.slow
def test_hundred_drawn_addresses_hear_no_secret(learned, tmp_path, listener):
    for planting in drawn(int(os.environ.get("CTVR_PLANTINGS", "100")), 53):
        hears_nothing(planting, learned, tmp_path, listener)


def run_of(runs: Path) -> tuple[Tracker, str]:
    tracker = Tracker(default_uri(runs), runs)
    return tracker, next(run.run_id for run in tracker.find_runs() if run.settings["method"] == "framefusion_moe")


def test_a_command_names_the_record_the_host_and_the_option(learned, tmp_path, listener, capsys):
    runs = shutil.copytree(learned, tmp_path / "runs")
    host = f"http://127.0.0.1:{listener.port}"
    assert attack(runs, "runs.artifact_uri", f"{host}/x", "search x --model framefusion_moe", listener) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("ctvr: run ")
    assert not missing_from(line, f"sqlite:///{runs}/mlflow.db", host, "--trust")


def test_the_listener_hears_the_password_if_the_user_names_the_host(learned, tmp_path, listener):
    """Without this control, an unheard secret would prove nothing."""
    runs = shutil.copytree(learned, tmp_path / "runs")
    rows("runs", "artifact_uri")(runs, f"http://127.0.0.1:{listener.port}/api/2.0/mlflow-artifacts/artifacts/x")
    tracker, run = run_of(runs)
    with pytest.raises(ConfigError, match="--trust"):
        tracker.download(run, "config.json")
    addresses.name_addresses([f"http://127.0.0.1:{listener.port}"], by_trust=True)
    with pytest.raises(FileNotFoundError):
        tracker.download(run, "config.json")
    assert b"Authorization" in b"".join(listener.heard)


def test_a_redirect_to_another_host_is_not_followed(listener, monkeypatch):
    class Moved(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            place = f"Location: http://127.0.0.1:{listener.port}/x"
            self.request.sendall(f"HTTP/1.1 307 Moved\r\n{place}\r\nContent-Length: 0\r\n\r\n".encode())

    from ctvr.orchestrator.tracking.server import new_client

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        with pytest.raises(Exception, match="307|redirect|Moved|failed"):
            new_client(f"http://127.0.0.1:{server.server_address[1]}").search_experiments()
        server.shutdown()
    assert not listener.heard


def test_a_link_of_the_folder_leads_neither_in_nor_out(learned, tmp_path):
    runs = shutil.copytree(learned, tmp_path / "runs")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "config.json").write_text("{}")
    tracker, run = run_of(runs)
    assert tracker.download(run, "config.json").is_relative_to(runs)  # a copy is read, and not the original
    folder = next(each.folder for each in tracker.find_runs() if each.run_id == run)
    (folder / "out").symlink_to(tmp_path / "private")
    with refuses("config.json"):
        tracker.download(run, "out/config.json")
    tracker.log_text(run, "out/authorized_keys", "theirs")
    assert not (tmp_path / "private" / "authorized_keys").exists()
    assert tracker.download(run, "config.json") == folder / "config.json"


def test_the_pages_of_mlflow_do_not_start_on_a_foreign_address(learned, tmp_path, listener, capsys):
    runs = shutil.copytree(learned, tmp_path / "runs")
    assert attack(runs, "runs.artifact_uri", "s3://theirs/x", "ui --port 1024", listener) == 2
    assert "runs.artifact_uri in sqlite:" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- plans


def planned(runs: Path, **more: Any) -> ExecutionConfig:
    execution = ExecutionConfig(runs=runs, **more)
    write_plan(trial_plan(execution, "s"), execution.folder("s"), where=resume_options(execution))
    return execution


def restored(execution: ExecutionConfig) -> tuple[ExecutionConfig, Any]:
    plan, kept = read_plan(execution.folder("s"), "s")
    execution = restore_execution(execution, plan, kept)
    return execution, trial_plan(execution, "s", recorded=plan)


def test_a_plan_of_this_process_keeps_its_places(tmp_path):
    (tmp_path / "videos").mkdir()
    more = {"store": "s3://mine/store", "videos": tmp_path / "videos", "address": "10.0.0.1:6379"}
    planned(tmp_path / "runs", **more, ray_storage="s3://mine/ray")
    execution, plan = restored(ExecutionConfig(runs=tmp_path / "runs"))
    assert (execution.store, execution.address) == ("s3://mine/store", "10.0.0.1:6379")
    assert (plan.store, plan.videos, plan.storage) == ("s3://mine/store", str(tmp_path / "videos"), "s3://mine/ray/s")


def test_a_copied_folder_is_resumed_into_its_own_storage(tmp_path):
    (tmp_path / "runs" / "videos").mkdir(parents=True)
    planned(tmp_path / "runs", store=str(tmp_path / "runs/own"), videos=tmp_path / "runs/videos")
    copy = shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    _, plan = restored(ExecutionConfig(runs=copy))
    assert (plan.root, plan.store, plan.videos) == (str(copy), str(copy / "own"), str(copy / "videos"))
    assert plan.storage == str(copy / "sweeps" / "s")
    assert str(tmp_path / "runs") not in str(plan)


@pytest.mark.parametrize("what", ["host", "user", "folder", "all"])
def test_places_of_a_plan_from_elsewhere_are_given_again(tmp_path, what):
    runs = tmp_path / "runs"
    (tmp_path / "videos").mkdir()
    places = {"store": "s3://theirs/store", "videos": tmp_path / "videos", "address": "10.0.0.1:6379"}
    planned(runs, **places, ray_storage="s3://theirs/ray")
    file = runs / "sweeps" / "s" / "plan.json"
    kept = json.loads(file.read_text())
    if what == "all":
        del kept["writer"]  # as an older version wrote it
    else:
        kept["writer"][what] = "other"
    file.write_text(json.dumps(kept))
    with refuses("10.0.0.1:6379", "s3://theirs/store", "s3://theirs/ray/s", tmp_path / "videos"):
        restored(ExecutionConfig(runs=runs))
    given = ExecutionConfig(runs=runs, store="s3://b/c", address="auto", ray_storage="s3://b/ray", videos=tmp_path)
    execution, plan = restored(given)
    assert (execution.address, plan.store, plan.storage, plan.videos) == (
        "auto",
        "s3://b/c",
        "s3://b/ray/s",
        str(tmp_path),
    )
    with refuses("--address", "10.0.0.1:6379") as error:
        restored(replace(given, address=None))
    assert "--store" not in str(error.value)
    blank, _ = read_plan(file.parent, "s")
    assert (blank.store, blank.videos, blank.storage) == ("", None, str(file.parent))  # for who does not ask


def test_a_host_of_the_environment_need_not_be_given_again(tmp_path, monkeypatch):
    planned(tmp_path / "runs", store="s3://shared/store", address="10.0.0.1:6379")
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    monkeypatch.setenv("CTVR_STORE", "s3://shared/other")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    execution, plan = restored(ExecutionConfig(runs=tmp_path / "moved"))
    assert (execution.address, plan.store) == ("10.0.0.1:6379", "s3://shared/store")


# --------------------------------------------------------------------------------------------- legitimate


def test_a_moved_folder_works(learned, tmp_path, capsys):
    shutil.copytree(learned, tmp_path / "runs")
    link = tmp_path / "link"
    link.symlink_to(shutil.move(tmp_path / "runs", tmp_path / "moved"))
    for runs in (tmp_path / "moved", link):
        for command in ("search x --model framefusion_moe", "table --stream small", "runs sync", "runs --all"):
            assert main([*command.split(), "--runs", str(runs)]) == 0, capsys.readouterr().err


def test_a_database_that_the_user_names_keeps_its_artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/db/mlflow.db")
    from ctvr.orchestrator.tracking.tracker import create_store

    create_store(default_uri(tmp_path / "runs"), tmp_path / "runs", "small")
    tracker = Tracker(default_uri(tmp_path / "runs"), tmp_path / "runs")
    run = tracker.open_run("small", "a", {})
    tracker.log_text(run, "note.txt", "x")
    assert tracker.download(run, "note.txt").is_relative_to(tmp_path / "db")
    tracker.artifacts.require_all()
    assert ui_command(default_uri(tmp_path / "runs"), port=0)


@pytest.mark.parametrize(
    ("address", "named", "allowed"),
    [
        ("http://h:5000/x", "http://h:5000", True),
        ("http://H:5000/x", "http://h:5000/api", True),
        ("https://h/x", "https://h:443", True),
        ("http://h:5000/x", "https://h:5000", False),  # in clear text
        ("http://h:5001/x", "http://h:5000", False),  # another user's server
        ("http://h:5000@evil/x", "http://h:5000", False),
        ("http://h:5000\\@evil/x", "http://h:5000", False),
        ("http://evil/http://h:5000", "http://h:5000", False),
        ("http://h.evil:5000/x", "http://h:5000", False),
        ("http://user:p@h:5000/x", "http://h:5000", True),
        ("http://h:5000 .evil/x", "http://h:5000", False),
        ("mlflow-artifacts://h:5000/x", "http://h:5000", True),
        ("s3://bucket/a/b", "s3://bucket/store", True),
        ("s3://bucket.evil/a", "s3://bucket", False),
        ("10.0.0.1:6379", "ray://10.0.0.1:6379", True),
        ("localhost:6379", "localhost:6379", True),
        ("models:/m/1", "models:/m", False),
        ("file:///data/a%20b", "/data", True),
        ("file:/data/a", "/data", True),
        ("/data/%2e%2e/x", "/data", True),  # a name, not a step upwards
        ("file:///data/%2e%2e/etc", "/data", False),
        ("/data/../etc", "/data", False),
        ("/database", "/data", False),
        ("file://evil/data/x", "/data", False),
    ],
)
def test_an_address_is_allowed_if_its_host_or_folder_is_named(address, named, allowed, monkeypatch):
    for name in addresses.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert addresses.is_allowed(address, named) is allowed
    addresses.name_addresses([named])
    assert addresses.is_allowed(address) is allowed


def test_a_file_of_another_user_in_a_shared_folder_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    addresses.require_own(file)
    (tmp_path / "address").write_text("127.0.0.1:1")
    file.symlink_to(tmp_path / "address")
    with refuses("--address", where="ray_current_cluster"):
        connection.connect()
    file.unlink()
    file.write_text("127.0.0.1:1")
    addresses.require_own(file)
    monkeypatch.setattr("ctvr.orchestrator.addresses.os.getuid", lambda: os.geteuid() + 1)
    with refuses(file):
        addresses.require_own(file)
    addresses.require_own(file, os.geteuid())
