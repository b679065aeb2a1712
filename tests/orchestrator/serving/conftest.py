"""A snapshot of a small model, and a service of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.serving.snapshot import Snapshot
from tests.orchestrator.serving.client import Client, served


@pytest.fixture(scope="module")
def snapshot(learned: Path) -> Snapshot:
    return Snapshot(load("zero_shot", ExecutionConfig(runs=learned)), "zero_shot <on> small")


@pytest.fixture(scope="module")
def client(snapshot: Snapshot) -> Iterator[Client]:
    with served(lambda: snapshot) as found:
        yield found
