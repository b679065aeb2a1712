"""Fixtures every test may use; settings that keep Ray, MLflow and torch quiet and quick on two cores.

`make test` and `make test-all` run every test in a child of pytest's own process (pytest-xdist). The parent loads none
of the packages, so that the exit status is that of the tests whatever native threads do while a child ends. What was
seen to end badly together stays apart besides: decord is never loaded in a process of pytest, and the process that
runs Ray decodes and encodes no film.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

REPOSITORY = Path(__file__).resolve().parent.parent
RAY = REPOSITORY / "tests" / "orchestrator" / "on_ray"


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests of `on_ray` start Ray in the process of pytest: `make test-all` gives them one of their own."""
    for item in items:
        if item.path.parent == RAY and item.get_closest_marker("slow"):
            item.add_marker("ray")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Name the first test that brings together what must stay apart."""
    if "decord" in sys.modules:
        pytest.fail("decord was loaded in the process of pytest. Decode in a child: tests/orchestrator/video/clips.py")
    if item.config.option.markexpr.startswith("ray") and "av" in sys.modules:
        pytest.fail("FFmpeg was loaded in the process that runs Ray. Write films with tests.small_stream.write_apart")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real videos and split files that the repository does not ship."""
    folder = Path(os.environ.get("CTVR_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("the real files are not on this machine (set CTVR_SHARED)")
    return folder
