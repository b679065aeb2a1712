"""The latency of the service is that of correct answers, which are compared with the whole matrix."""

import os
from pathlib import Path

import pytest

from ctvr.orchestrator.serving.snapshot import Snapshot
from tools.bench.service import measure_service


def test_small_galleries_are_measured_on_one_core(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    (row,) = measure_service(tmp_path, True, (1500,))
    assert (row.videos, row.queries) == (1500, 50)
    assert 0 < row.p50 <= row.p99
    assert row.cpu > 0
    assert os.sched_getaffinity(0) == cores


def test_wrong_answers_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshot, "search", lambda self, query, k: self.model.search(query, k)[::-1])
    with pytest.raises(RuntimeError, match="does not return the best videos"):
        measure_service(tmp_path, True, (100,))
