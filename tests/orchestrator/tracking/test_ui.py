"""`ctvr ui` for its owner and for a stranger: MLflow's pages on this machine, and nothing else."""

import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ctvr.orchestrator.tracking.server import default_uri
from ctvr.orchestrator.tracking.tracker import Tracker, create_store


def traversals(canary: Path) -> list[str]:
    """Return forty paths that point outside the artifacts."""
    outside = str(canary).lstrip("/")
    up = ["../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%252f", "..\\", "..%5c", "....//", "..;/", "%c0%ae%c0%ae/"]
    found = [f"{each * depth}{outside}" for each in up for depth in (1, 8, 16)]
    found += [
        f"/{outside}",
        f"//{outside}",
        f"file:///{outside}",
        f"file:{outside}",
        f"%2f{outside}",
        f"a/../../{outside}",
    ]
    found += [f"./{outside}", f"%00/{outside}", f"model/%2e%2e/%2e%2e/{outside}", f"C:/{outside}"]
    return found


@pytest.mark.slow
def test_ui_serves_only_artifacts_on_loopback(tmp_path, free_port):
    canary = tmp_path / "canary"
    canary.write_text("cAnArY-outside")
    runs = tmp_path / "runs"
    create_store(default_uri(runs), runs, "shapes-5")
    tracker = Tracker(default_uri(runs), runs)
    run_id = tracker.open_run("shapes-5", "r", {"a": 1})
    tracker.log_json(run_id, "config", {"inside": 1})
    command = [sys.executable, "-m", "ctvr", "ui", "--runs", str(runs), "--port", str(free_port)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    base = f"http://127.0.0.1:{free_port}"

    def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        data = b'{"name": "made by a stranger"}' if method == "POST" else None
        request = urllib.request.Request(base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (OSError, http.client.HTTPException, ValueError):
            return 0, b""

    try:
        until = time.monotonic() + 120
        while ask("/health")[0] != 200:
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.5)
        lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
        mine = [line.split()[1] for line in lines if f":{free_port:04X} " in line and line.split()[3] == "0A"]
        assert mine == [f"0100007F:{free_port:04X}"]
        assert ask("/", Host="evil.example.com")[0] == 403
        create = "/api/2.0/mlflow/experiments/create"
        stranger = {"Content-Type": "application/json", "Origin": "http://evil.example.com"}
        assert ask(create, "POST", **stranger)[0] == 403
        served = f"/get-artifact?run_uuid={run_id}&path="
        assert b"inside" in ask(served + "config.json")[1]
        strings = traversals(canary)
        assert len(strings) == 40
        for text in strings:
            for path in (served + text, f"/api/2.0/mlflow-artifacts/artifacts/{text}", f"/static-files/{text}"):
                assert b"cAnArY" not in ask(path.replace(" ", "%20"))[1], path
            listed = f"/api/2.0/mlflow/artifacts/list?run_id={run_id}&path={text}"
            assert b"canary" not in ask(listed)[1], listed
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
