"""Fixtures every test may use; settings that keep Ray, MLflow and torch quiet and quick on two cores."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

REPOSITORY = Path(__file__).resolve().parent.parent
_sessions: list[pytest.Session] = []
_status: list[int] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    _sessions.append(session)


@pytest.hookimpl(trylast=True)  # if another hook fails, this one is not called, and the error decides as ever
def pytest_unconfigure() -> None:
    _status.extend(int(session.exitstatus) for session in _sessions)


@atexit.register  # before any package is loaded that registers something: so it runs last
def _end_before_the_packages_do() -> None:
    """Leave with the status of the tests. One process has loaded Ray, Arrow, obstore, torch and FFmpeg by now.

    Their threads outlive the interpreter: a run all of whose tests had passed crashed at this point (139).
    """
    if _status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status[-1])


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference outputs and real files that the repository does not ship."""
    folder = Path(os.environ.get("CTVR_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("reference files are not on this machine (set CTVR_SHARED)")
    return folder
