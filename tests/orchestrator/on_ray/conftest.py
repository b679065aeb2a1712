"""The tests of this room start Ray in their own process, which opens no video: FFmpeg and Ray end badly together."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import av
import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is slow in this room runs Ray: `make test-all` gives it a process of its own."""
    if item.get_closest_marker("slow"):
        item.add_marker("ray")


@pytest.fixture(autouse=True, scope="package")
def _opens_no_video() -> Iterator[None]:
    def refuse(*words: object, **named: object) -> NoReturn:
        raise AssertionError("FFmpeg was asked to open a video beside Ray. Give it a child: tests/in_subprocess.py")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(av, "open", refuse)
        yield


@pytest.fixture(scope="package")
def _ray() -> Iterator[None]:
    """Ray's sockets in a folder of their own, whose paths are short; a Ray that runs at the end is stopped."""
    import ray

    before = dict(os.environ)
    folder = tempfile.mkdtemp(prefix="rt", dir="/tmp")
    os.environ["RAY_TMPDIR"] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def two_cpus(_ray: None) -> None:
    """A Ray of two CPUs, started once for all files of this room."""
    from ctvr.orchestrator.on_ray.connection import connect

    connect("local", 2)
