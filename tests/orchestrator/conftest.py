"""The small stream, decoded once for all tests of a session."""

import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Stream
from tests.http_server import Server
from tests.small_stream import write_stream


def pytest_runtest_setup() -> None:
    """Let MLflow load its 70 migrations once, and not for each database, to find the newest."""
    if (schema := sys.modules.get("mlflow.store.db.utils")) and isinstance(
        schema._get_latest_schema_revision, FunctionType
    ):
        schema._get_latest_schema_revision = cache(schema._get_latest_schema_revision)


@pytest.fixture(scope="session")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder that holds the stream, its decoded frames and the zero-shot curve, and nothing else."""
    root = tmp_path_factory.mktemp("runs")
    manifest = write_stream(root / "small")
    stream = load_stream(manifest, root)
    for split in ("test", "val"):
        settings = {"method": "zero_shot", "stream": str(manifest), "evaluation.split": split}
        execute(resolve(settings, stream.settings), RunPaths(root))
    return root


@pytest.fixture
def runs(decoded: Path, tmp_path: Path) -> Path:
    """Return a new runs folder with everything decoded, for one test only."""
    root = tmp_path / "runs"
    shutil.copytree(decoded, root)
    return root


@pytest.fixture
def manifest(runs: Path) -> str:
    return str(runs / "small" / "small.json")


@pytest.fixture
def small_stream(manifest: str, runs: Path) -> Stream:
    return load_stream(manifest, runs)


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the manifest of a stream of two tasks with a few videos, none of them decoded."""
    return str(write_stream(tmp_path_factory.mktemp("few"), num_tasks=2, train=2, searched=1))


@pytest.fixture
def execution(tmp_path: Path) -> ExecutionConfig:
    """Return an empty runs folder."""
    return ExecutionConfig(runs=tmp_path / "runs", local_cpus=2)


@pytest.fixture
def free_port() -> int:
    """Return a port of this machine that no process listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Start a proxy that every variable names, without exceptions, and that refuses every request."""
    with Server(403) as server:
        monkeypatch.setattr("os.environ", dict(os.environ))
        monkeypatch.setattr("urllib.request._opener", None)  # the first urlopen of a process reads the proxies for all
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            del os.environ[name]
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            os.environ[name] = os.environ[name.upper()] = f"http://user:hidden@127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
