"""The comparisons of `make bench` run, at sizes where only their form can be checked."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from methods.backbone.clip import Clip
from methods.backbone.load import TINY, load_backbone
from orchestrator.bench import cpu as bench
from orchestrator.bench import gpu
from orchestrator.bench.cpu import Row, bench_encoder, bench_ranking, bench_step, bench_store, paired, to_markdown


@pytest.fixture(scope="module")
def tiny() -> Clip:
    return load_backbone(TINY, "shipped")


def check(rows: list[Row]) -> None:
    assert rows
    for row in rows:
        assert 0 < row.low <= row.ratio <= row.high < math.inf
        assert row.ours > 0
        assert row.other > 0


def test_the_two_sides_alternate_after_a_warm_up_of_both() -> None:
    seen: list[str] = []
    row = paired("a", "b", lambda: seen.append("a"), lambda: seen.append("b"), pairs=3)
    assert "".join(seen) == "ab" + "ab" + "ba" + "ab"
    assert row.pairs == 3


def test_a_training_step_is_compared_with_plain_fine_tuning(tiny: Clip) -> None:
    rows = bench_step(tiny, "tiny", pairs_of_batch=2, frames=2, pairs=2)
    check(rows)
    assert ["training step" in row.name for row in rows] == [True, False]


def test_the_compared_methods_share_no_weights(tiny: Clip) -> None:
    before = [parameter.detach().clone() for parameter in tiny.parameters()]
    bench_step(tiny, "tiny", pairs_of_batch=2, frames=2, pairs=1)
    assert all(torch.equal(a, b) for a, b in zip(before, tiny.parameters(), strict=True))


def test_an_encoder_is_compared_with_plain_clip(tiny: Clip) -> None:
    check(bench_encoder("framefusion_moe", tiny, "tiny", videos=1, frames=2, pairs=2))


def test_ranking_by_counting_agrees_with_sorting_twice() -> None:
    check(bench_ranking(size=50, pairs=2))


def test_an_epoch_from_the_store_is_compared_with_decoding(tmp_path: Path) -> None:
    rows = bench_store(tmp_path, videos=2, pairs=1)
    check(rows)
    assert all(row.other_name == "decoding each time" for row in rows)


def test_an_epoch_from_features_is_compared_with_one_from_frames(tiny: Clip, tmp_path: Path) -> None:
    row = bench.bench_features(tmp_path, tiny, "tiny", {"use_ffa": False}, videos=2, frames=2)
    check([row])
    assert "features of 4 frozen blocks" in row.name


@pytest.mark.slow
def test_a_trial_under_ray_is_compared_with_the_bare_loop(tmp_path: Path) -> None:
    import ray

    before = dict(os.environ)
    try:
        check(bench.bench_trial(tmp_path, pairs=1, epochs=1))
    finally:
        ray.shutdown()
        os.environ.clear()  # what joining a cluster sets must not reach other tests
        os.environ.update(before)


def test_rows_become_a_markdown_table() -> None:
    text = to_markdown([Row("x", "y", 1.0, 2.0, 0.5, 0.4, 0.6, 3, "noted")])
    assert text.splitlines()[2] == "| x; noted | 1.0000 | y | 2.0000 | 0.50 (0.40 to 0.60) | 3 |"


def test_an_unknown_comparison_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--only", "rankin"]) == 2
    assert capsys.readouterr().err == (
        "bench: --only rankin: is no comparison. Did you mean 'ranking'? "
        "All: step, step-vit, encoder, ranking, store, features, trial.\n"
    )


def test_one_comparison_can_be_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.BENCHES, "ranking", lambda root: bench_ranking(20, 1))
    assert bench.main(["--only", "ranking"]) == 0
    machine, _, _, _, row = capsys.readouterr().out.splitlines()
    assert f"{os.cpu_count()} CPUs" in machine
    assert row.startswith("| ranking 20 x 20")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_measurements_for_a_gpu_run_on_a_cpu_too(tiny: Clip, precision: str) -> None:
    row = gpu.measure("framefusion_moe", tiny, precision, torch.device("cpu"), pairs=2, frames=2, steps=2)
    assert row.workers == 1
    assert min(row.step_ms, row.videos_per_second, row.encoded_per_second) > 0
    assert "| framefusion_moe | " in gpu.to_markdown([row])


@pytest.mark.slow
def test_a_step_dealt_to_two_processes_is_measured() -> None:
    size = {"backbone": TINY, "weights": "shipped", "pairs": 4, "frames": 2, "steps": 2, "precisions": ("fp32",)}
    rows = gpu.in_parallel(2, "gloo", "cpu", **size)
    assert [row.workers for row in rows] == [2, 2]
    assert all(row.step_ms > 0 for row in rows)


def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.gpu_table() == "This machine has no GPU that torch can use: nothing was measured."
