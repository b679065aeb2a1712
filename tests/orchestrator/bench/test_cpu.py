"""The comparisons run, at sizes where only their form can be checked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from methods.backbone.clip import Clip
from methods.backbone.load import TINY, load_backbone
from orchestrator.bench.cpu import Comparison, bench_features, bench_trial, paired
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


def test_an_epoch_from_features_is_compared_with_one_from_frames(tiny: Clip, tmp_path: Path) -> None:
    row = bench_features(tmp_path, tiny, "tiny", {"use_ffa": False}, videos=2, frames=2)
    check([row])
    assert "features of 4 frozen blocks" in row.name


@pytest.mark.slow
def test_trials_under_ray_are_compared_with_the_bare_loop(tmp_path: Path) -> None:
    rows = apart(bench_trial, tmp_path, pairs=1, epochs=1, trials=2)
    check(rows)
    of_many, alone = rows
    assert "sweep of 2" in of_many.name
    assert of_many.ours > of_many.other  # Ray's own processes are among those that are watched
    assert "CPU-s more" in of_many.note
    assert alone.pairs == 1
