"""Tests of this package start Ray in their own process, which opens no video: FFmpeg and Ray conflict."""

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
    """Mark slow tests of this package, which run Ray: `make test-all` gives them a separate process."""
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
    """Put Ray's sockets into a separate folder with a short path; stop a Ray that runs at the end."""
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
    """Start Ray with two CPUs, once for all files of this package."""
    from ctvr.orchestrator.on_ray.connection import connect

    connect("local", 2)
