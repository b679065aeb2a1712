"""`ctvr doctor --gpu` on a CPU, where it measures the small backbone, and its recommendations."""

from dataclasses import replace
from pathlib import Path

import pytest

from ctvr.orchestrator.jobs.gpu_probe import LARGER, PAIRS, Measured, Step, probe, remedies, report

# docs/gpu.md: clip4clip on an H200. Store and decoding are the audit's figures of one core
H200 = Measured(
    "NVIDIA H200",
    "ViT-B-32-quickgelu",
    (
        Step("fp32", PAIRS, 0.0791),
        Step("tf32", PAIRS, 0.083),
        Step("bf16", PAIRS, 0.077),
        Step("bf16", LARGER, 0.0971),
    ),
    1100.0,
    1_806_336,
    14.0,
    16,
)


@pytest.mark.slow
def test_a_machine_without_a_gpu_says_so_and_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    text = probe("", tmp_path, steps=1, megabytes=2, seconds=1)
    assert "no GPU that torch can use" in text
    lines = text.splitlines()
    steps = [line.split() for line in lines if line.startswith("  step")]
    assert [words[1:4] for words in steps] == [["fp32,", "8", "pairs:"], ["bf16,", "8", "pairs:"]]
    assert all(float(words[4]) > 0 for words in steps)
    assert sum(line.startswith(("  store", "  decoding")) for line in lines) == 2
    assert "bound by " in text
    assert [path for path in Path(tmp_path).rglob("*") if path.is_file()] == []  # nothing is left


def test_the_bound_is_what_takes_longest_in_a_run_and_decoding_counts_once():
    assert H200.fastest.precision == "bf16"
    assert H200.bound == "steps"  # 104 clips/s; 20 epochs of decoding would be 280
    assert replace(H200, store=50.0).bound == "store"
    assert replace(H200, decoding=5.0).bound == "decoding"


@pytest.mark.parametrize(
    ("found", "says", "not_says"),
    [
        (H200, "--gpus-per-trial 0.25", "precision="),  # a step of 8 waits for the host in every precision
        (
            replace(H200, steps=(Step("fp32", PAIRS, 0.3), Step("bf16", PAIRS, 0.1), Step("bf16", LARGER, 0.35))),
            "precision=bf16 is 3.0 times as fast",
            "waits for the host",
        ),
        (
            replace(H200, gpu="", steps=(Step("fp32", PAIRS, 0.1), Step("bf16", PAIRS, 0.2))),
            "a GPU makes",
            "precision=",
        ),
        (replace(H200, store=50.0), "data.prefetch_threads=4", "--gpus-per-trial"),
        (replace(H200, decoding=5.0), "ctvr cache build --cluster", "--store"),
        (replace(H200, steps=(Step("bf16", PAIRS, 0.1), Step("bf16", LARGER, 0.4))), "no setting was found", "->"),
    ],
)
def test_the_settings_that_help_are_those_of_the_bound(found, says, not_says):
    text = "\n".join(remedies(found))
    assert says in text
    assert not_says not in text
    assert f"bound by {found.bound}" in report(found, "/store")
