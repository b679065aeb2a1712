"""Freed memory is kept while a CPU computes, and released at the end."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch

from ctvr.orchestrator.data import malloc_tuning
from ctvr.orchestrator.data.malloc_tuning import retain_freed_memory
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.learning.run import RunPaths, execute
from ctvr.orchestrator.streams.load import load_stream
from tests.in_subprocess import in_subprocess

CPU = torch.device("cpu")
ELEMENTS = 64 << 18  # of 4 bytes: 64 MiB


def pages_fetched() -> int:
    """By a tensor of 64 MiB that follows a freed one; the fewest of ten, for what is small may take a place before."""
    found = []
    for _ in range(11):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.zeros(ELEMENTS).fill_(1)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found[1:])


def held() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def watched() -> tuple[int, int, float]:
    """Measure the pages fetched without and with retained memory, and the MiB released at the end."""
    with retain_freed_memory(CPU, is_kept=False):
        usual = pages_fetched()
    with retain_freed_memory(CPU):
        kept, inside = pages_fetched(), held()
    return usual, kept, inside - held()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone is asked")
@pytest.mark.slow
def test_freed_memory_is_fetched_once_inside_and_handed_back_at_the_end():
    usual, kept, given_back = in_subprocess(watched)  # where nothing that ran before has left its holes
    if usual < 1000:
        pytest.skip("pages are large here, or the C library is not glibc")
    assert kept < usual / 10
    assert given_back > 60


def test_a_run_keeps_its_heap_and_ends_with_the_usual_one(monkeypatch, runs, manifest):
    told: list[dict[int, int]] = []
    monkeypatch.setattr(malloc_tuning, "_set", told.append)
    experiment = resolve(
        {"method": "lora", "stream": manifest, "optim.epochs": 1}, load_stream(manifest, runs).settings
    )
    seen: list[int] = []
    execute(experiment, RunPaths(runs), report=lambda *_: seen.append(len(told)))
    assert seen == [1, 1, 1]  # in every task
    assert len(told) == 2
    assert told[0] != told[1]


def test_a_gpus_run_leaves_the_heap_alone(monkeypatch):
    monkeypatch.setattr(malloc_tuning, "_set", lambda values: pytest.fail("the heap was set"))
    with retain_freed_memory(torch.device("cuda")):
        pass
