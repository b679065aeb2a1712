"""What jobs are tried on without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from tests.small_stream import write_stream


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The manifest of a stream of two tasks with a few videos, of which nothing is decoded yet."""
    return str(write_stream(tmp_path_factory.mktemp("few"), num_tasks=2, train=2, searched=1))


@pytest.fixture
def where(tmp_path: Path) -> ExecutionConfig:
    """An empty runs folder."""
    return ExecutionConfig(runs=tmp_path / "runs", local_cpus=2)
