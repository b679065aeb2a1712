"""`ray job submit` reaches a cluster that requires a token, with the user's own variables."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

RAY = Path(sys.executable).with_name("ray")
JOB = """
import os, ray
from ctvr.orchestrator.on_ray.connection import connect
assert connect()
seen = ray.get(ray.remote(num_cpus=0)(lambda: [os.environ.get(n) for n in ("OMP_NUM_THREADS", "MINE")]).remote())
print("seen", seen)
"""

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def head() -> Iterator[dict[str, str]]:
    """Start a head of one CPU that requires a token; yield the variables of a client that has it."""
    folder = Path(tempfile.mkdtemp(prefix="rj", dir="/tmp"))
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    port, dashboard = free_port(), free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables |= {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    variables |= {"RAY_raylet_start_wait_time_s": "120", "RAY_USAGE_STATS_ENABLED": "0"}
    words = [RAY, "start", "--head", "--block", "--num-cpus=1", f"--port={port}", "--node-ip-address=127.0.0.1"]
    words += [f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", "--object-store-memory=80000000"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        yield {**variables, "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def submitted(variables: dict[str, str], own: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = [RAY, "job", "submit", "--runtime-env-json", json.dumps({"env_vars": own}), "--", sys.executable, "-c", JOB]
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300)


def test_a_submitted_job_joins_its_cluster_and_keeps_its_users_variables(head: dict[str, str]) -> None:
    for _ in range(30):  # the head may still start
        done = submitted(head, {"OMP_NUM_THREADS": "3", "MINE": "yes"})
        if "Failed to connect" not in done.stdout + done.stderr:
            break
    assert "seen ['3', 'yes']" in done.stdout, done.stdout + done.stderr
    without = {name: value for name, value in head.items() if not name.startswith("RAY_AUTH")}
    refused = submitted({**without, "RAY_AUTH_MODE": "disabled"}, {})
    assert refused.returncode != 0
    assert "seen" not in refused.stdout
