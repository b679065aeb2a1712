"""Trials on one GPU keep to their share of its memory; a trial that needs more runs again alone."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ctvr.orchestrator.errors import OutOfMemory
from ctvr.orchestrator.on_ray import gpu_sharing
from ctvr.orchestrator.on_ray.gpu_sharing import CONTEXT_BYTES, limit_memory, run_on_share
from tests.refusing import refuses


@pytest.fixture(autouse=True)
def _locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_sharing.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the fractions of the memory of a GPU of 80 GB that this process sets."""
    set_to: list[float] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9))
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda share, device: set_to.append(share))
    return set_to


class Trial:
    """Runs out of memory in its first `short` calls; a call lasts until `go` is set."""

    def __init__(self, short: int = 0) -> None:
        self.short, self.calls, self.released = short, 0, 0
        self.began, self.go = threading.Event(), threading.Event()

    def run(self) -> None:
        self.calls += 1
        if self.calls <= self.short:
            raise OutOfMemory("data.batch_size: too small")
        self.began.set()
        assert self.go.wait(30)

    def release(self) -> None:
        self.released += 1

    def start(self, share: float = 0.5) -> threading.Thread:
        thread = threading.Thread(target=run_on_share, args=(share, self.run, self.release))
        thread.start()
        return thread


def test_trials_share_a_gpu_and_keep_to_their_memory(limits: list[float]) -> None:
    trials = [Trial(), Trial()]
    threads = [trial.start() for trial in trials]
    assert all(trial.began.wait(30) for trial in trials)  # both at the same time
    for trial in trials:
        trial.go.set()
    for thread in threads:
        thread.join(30)
    assert limits == [pytest.approx(0.5 - CONTEXT_BYTES / 80e9)] * 2
    assert [trial.calls for trial in trials] == [1, 1]


def test_out_of_memory_trial_is_repeated_alone(limits: list[float]) -> None:
    neighbour, large, later = Trial(), Trial(short=1), Trial()
    threads = [neighbour.start()]
    assert neighbour.began.wait(30)
    threads.append(large.start())
    until = time.monotonic() + 30
    while not large.released and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)  # it waits for the neighbor
    threads.append(later.start())
    assert not large.began.wait(0.3)
    assert not later.began.wait(0.1)
    neighbour.go.set()
    assert large.began.wait(30)
    assert not later.began.wait(0.3)
    large.go.set()
    assert later.began.wait(30)
    later.go.set()
    for thread in threads:
        thread.join(30)
    assert (large.calls, large.released) == (2, 1)
    assert limits.count(1.0) == 1


def test_out_of_memory_is_final_on_a_whole_gpu(limits: list[float]) -> None:
    for share, short, calls in [(1.0, 1, 1), (0.25, 2, 2)]:
        trial = Trial(short=short)
        with pytest.raises(OutOfMemory, match="too small"):
            run_on_share(share, trial.run, trial.release)
        assert trial.calls == calls


def test_a_cpu_and_whole_gpus_are_not_limited(limits: list[float], tmp_path: Path) -> None:
    done: list[str] = []
    for share in (0.0, 1.0, 2.0):
        run_on_share(share, lambda: done.append("trained"), list)
    assert done == ["trained"] * 3
    assert limits == []
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_several_keeps_to_its_share_of_a_gpu(limits: list[float]) -> None:
    limit_memory(1.0)
    limit_memory(0.25)
    limit_memory(0.005)
    assert limits == [1.0, pytest.approx(0.2425), 0.01]


def test_a_lock_of_another_user_is_not_opened(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("text")
    (tmp_path / f"ctvr-gpu-{os.getuid()}-3.queue").symlink_to(kept)
    with refuses(where="ctvr-gpu-0-3.queue"):
        run_on_share(0.5, lambda: None, lambda: None)
    assert kept.read_text() == "text"
