"""The measurements of `make bench-gpu` also run on a CPU, where only their form can be checked."""

import pytest
import torch

from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.load import load_backbone
from ctvr.orchestrator.jobs import step_timing
from tools.bench import gpu


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_the_measurements_for_a_gpu_run_on_a_cpu_too(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[tuple[torch.device, str]] = []
    monkeypatch.setattr(step_timing, "set_determinism", lambda device, precision: prepared.append((device, precision)))
    row = gpu.time_step(
        "framefusion_moe", load_backbone(TINY, "shipped"), precision, torch.device("cpu"), pairs=2, frames=2, steps=2
    )
    assert prepared == [(torch.device("cpu"), precision)]  # as a run prepares it
    assert row.workers == 1
    assert min(row.step_ms, row.videos_per_second, row.encoded_per_second) > 0
    assert "| framefusion_moe | " in gpu.to_markdown([row])


@pytest.mark.slow
def test_a_step_dealt_to_two_processes_is_measured() -> None:
    size = {"backbone": TINY, "weights": "shipped", "pairs": 4, "frames": 2, "steps": 2, "precisions": ("fp32",)}
    rows = gpu.in_parallel(2, "gloo", "cpu", **size)
    assert [row.workers for row in rows] == [2, 2]
    assert all(row.step_ms > 0 for row in rows)


def test_a_machine_without_a_gpu_gets_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.gpu_table() == "This machine has no GPU that torch can use: nothing was measured."
