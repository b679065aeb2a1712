"""Secrets are printed, logged and recorded nowhere; what is found of them is named, never repeated."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.redaction import hide_secrets, redact, secret_values
from orchestrator.tracking.server import default_uri

REPOSITORY = Path(__file__).resolve().parents[2]
CANARY = "cAnArY-7gK2"  # every planted secret begins so; made up
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-aws-secret",
    "AWS_SESSION_TOKEN": f"{CANARY}-aws-session",
    "MLFLOW_TRACKING_TOKEN": f"{CANARY}-mlflow-token",
    "HF_TOKEN": f"{CANARY}-hf",
    "WANDB_API_KEY": f"{CANARY}-wandb",
    "OPENAI_API_KEY": f"{CANARY}-openai",
    "GITHUB_TOKEN": f"{CANARY}-github",
    "DB_PASSWORD": f"{CANARY}-database",
    "SSH_PRIVATE_KEY": f"{CANARY}-ssh",
    "RAY_AUTH_TOKEN": f"{CANARY}-ray-0123456789abcdef",  # of the cluster that the command starts
}


def test_values_of_secret_variables_and_passwords_of_addresses_are_left_out():
    environment = {"AWS_SECRET_ACCESS_KEY": "abcdefgh12345678", "MAX_TOKENS": "4096", "A_PASSWORD": "abcdefgh1234"}
    text = redact("key abcdefgh12345678, abcdefgh1234; 4096 at https://me:open@host/x and s3:/k:s@b", environment)
    assert text == "key ***, ***; 4096 at https://***@host/x and s3:/***@b"


def test_only_telling_values_are_searched_for():
    environment = {
        "AWS_SECRET_ACCESS_KEY": f"{CANARY}-1",
        "MAX_TOKENS": "100000",
        "RAY_AUTH_TOKEN_PATH": "/home/someone/token",
        "DB_PASSWORD": "password",
        "PLAIN": f"{CANARY}-1",
    }
    assert set(secret_values(environment)) == {"AWS_SECRET_ACCESS_KEY"}


@pytest.mark.parametrize("text", ["a@b", "http://host/a@b", "me@host: hello", "r1 25.9", "file:///a/b@c"])
def test_other_text_stays_as_it_is(text):
    assert redact(text, {}) == text


def test_no_log_line_of_any_library_holds_a_secret(monkeypatch, caplog):
    monkeypatch.setenv("SOME_TOKEN", f"{CANARY}-logged")
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    hide_secrets()
    hide_secrets()
    logging.getLogger("some.library").warning("sent %s to %s", f"{CANARY}-logged", "http://u:p@host")
    logging.getLogger("some.library").warning("100 % sure")
    assert caplog.messages == ["sent *** to http://***@host", "100 % sure"]


def test_a_password_in_the_tracking_address_becomes_a_variable_of_its_own(monkeypatch, tmp_path):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "old")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me%40lab:p%3Aw@tracking.example:5000/base")
    assert default_uri(tmp_path) == "https://tracking.example:5000/base"
    assert os.environ["MLFLOW_TRACKING_URI"] == "https://tracking.example:5000/base"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "me@lab"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "p:w"


# ------------------------------------------------------------------------------------------ whole commands


def ctvr(*words: str | Path, **environment: str) -> str:
    """What a command says, on both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **PLANTED, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["--store", f"https://me:{CANARY}-store@host/bucket"], {}),
        (["--store", f"s3://key:{CANARY}-store@bucket/x"], {}),
        (["--store", f"s3://bucket/x?secret={CANARY}-store"], {}),
        (["--storage", f"s3://key:{CANARY}-ray@bucket/x"], {}),
        ([f"backbone.weights=https://me:{CANARY}-weights@host/w.pt"], {}),
        ([f"backbone.wieghts=https://me:{CANARY}-weights@host/w.pt"], {}),
        (["--address", f"ray://me:{CANARY}-ray@127.0.0.1:9"], {}),
        ([], {"MLFLOW_TRACKING_URI": f"http://me:{CANARY}-uri@127.0.0.1:9"}),
        (
            ["--store", "s3://bucket/x"],
            {"AWS_ACCESS_KEY_ID": "x", "AWS_ENDPOINT_URL": f"http://m:{CANARY}-e@127.0.0.1:9"},
        ),
    ],
)
def test_a_command_that_fails_does_not_print_the_secret_that_it_was_given(manifest, runs, words, environment):
    base = ["sweep", "--runs", runs, "--method", "clip4clip", "--stream", manifest, "--local-cpus", "2", "--seeds", "0"]
    said = ctvr(*base, *words, **environment)
    assert "ctvr" in said
    assert CANARY not in said
    assert "Traceback" not in said
    assert not [file for file in runs.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[str]:
    """An MLflow server of this machine; it takes whatever name and password it is given."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--artifacts-destination", str(tmp_path / "artifacts"), "--port", str(free_port), "--workers", "1"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{free_port}/health", timeout=5)
                break
            except OSError:
                assert time.monotonic() < until, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield f"127.0.0.1:{free_port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sweep_leaves_no_secret_in_its_folder_in_mlflow_or_in_rays_logs(manifest, runs, tmp_path, server):
    """Ten variables of the environment, and the password of the tracking address."""
    ray_folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
    words = ["sweep", "--runs", runs, "--name", "s", "--method", "clip4clip", "--stream", manifest, "--seeds", "0"]
    words += ["--searcher", "grid", "--space", "method.lr=0,4e-6", "--scheduler", "none", "--confirm", "0"]
    words += ["--local-cpus", "2", "optim.weight_decay=0.2", "method.train_scale=true", "method.frame_norm=none"]
    try:
        said = ctvr(*words, MLFLOW_TRACKING_URI=f"http://me:{CANARY}-uri@{server}", RAY_TMPDIR=str(ray_folder))
        assert "2 complete, 0 stopped early, 0 failed" in said
        said += ctvr(
            "doctor", "--runs", runs, "--stream", manifest, MLFLOW_TRACKING_URI=f"http://me:{CANARY}-u@{server}"
        )
        assert CANARY not in said
        files = [file for folder in (runs, tmp_path, ray_folder) for file in folder.rglob("*") if file.is_file()]
        assert len(files) > 50
        assert any(file.name == "plan.json" for file in files)
        assert any("runtime_env_agent" in file.name for file in files)
        assert [file for file in files if not file.is_symlink() and CANARY.encode() in file.read_bytes()] == []
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
