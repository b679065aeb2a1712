"""The comparisons run, at sizes where only their form can be checked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from methods.backbone.clip import Clip
from methods.backbone.load import TINY, load_backbone
from orchestrator.bench.cpu import (
    Comparison,
    bench_encoder,
    bench_features,
    bench_ranking,
    bench_step,
    bench_store,
    bench_trial,
    paired,
)
from tests.apart import apart


@pytest.fixture(scope="module")
def tiny() -> Clip:
    return load_backbone(TINY, "shipped")


def check(rows: list[Comparison]) -> None:
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
    rows = apart(bench_store, tmp_path, videos=2, pairs=1)  # one side decodes in its own process
    check(rows)
    assert [row.other_name for row in rows[:2]] == ["decoding each time"] * 2


def test_an_epoch_from_features_is_compared_with_one_from_frames(tiny: Clip, tmp_path: Path) -> None:
    row = bench_features(tmp_path, tiny, "tiny", {"use_ffa": False}, videos=2, frames=2)
    check([row])
    assert "features of 4 frozen blocks" in row.name


@pytest.mark.slow
def test_a_trial_under_ray_is_compared_with_the_bare_loop(tmp_path: Path) -> None:
    check(apart(bench_trial, tmp_path, pairs=1, epochs=1))
