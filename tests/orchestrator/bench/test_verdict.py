"""A path fails where it is below its recorded share by more than both noises."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from methods.backbone.load import TINY, load_backbone
from orchestrator.bench.hot import HotPath, Measured, Share, measure
from orchestrator.bench.paths import PATHS, SHOWN, repeating
from orchestrator.bench.verdict import FILE, failures, read_shares, to_markdown, write_shares
from orchestrator.bench.work import random_batch


def row(name: str = "step", **shares: Share) -> Measured:
    return Measured(name, "a step", "a plain step", 1.0, 2.0, 3, shares, 100.0, 150.0)


@pytest.mark.parametrize(
    ("now", "is_short"),
    [
        (Share(2.0, 0.0), False),
        (Share(1.8, 0.0), False),  # the recorded noise, 0.1, and 3 % of each
        (Share(1.75, 0.0), True),
        (Share(1.75, 0.2), False),
        (Share(1.0, 0.2), True),
        (Share(9.0, 0.0), False),
        (Share(math.nan, 0.0), True),
    ],
)
def test_what_is_below_by_more_than_the_noise_of_both_is_short(now: Share, is_short: bool) -> None:
    recorded = {"step": {"times": Share(2.0, 0.15)}}
    assert bool(failures([row(times=now)], recorded)) == is_short
    assert ("| below |" in to_markdown([row(times=now)], recorded)) == is_short


def test_a_path_is_one_line_whatever_is_short_of_it_and_others_are_none() -> None:
    bad = {"times": Share(1.0, 0.0), "memory": Share(0.5, 0.0), "of_gemm": Share(0.6, 0.0)}
    recorded = {name: {"times": Share(2.0, 0.0), "memory": Share(1.0, 0.0)} for name in ("step", "texts", "unasked")}
    assert failures([row(**bad), row("texts", times=Share(2.0, 0.0)), row("new", **bad)], recorded) == [
        "step: 1.00 times as fast, recorded 2.00 (at least 1.91 with noise); "
        "0.50 times less memory, recorded 1.00 (at least 0.95 with noise)"
    ]


def test_recorded_shares_come_back_and_paths_that_were_not_measured_stay(tmp_path: Path) -> None:
    file = tmp_path / "shares.json"
    write_shares([row(times=Share(2.0, 0.5)), row("texts", times=Share(1.5, 0.1))], "idle", file)
    write_shares([row(times=Share(3.0, 0.25))], "busy", file)
    assert read_shares(file) == {"step": {"times": Share(3.0, 0.25)}, "texts": {"times": Share(1.5, 0.1)}}
    assert '"step": "busy"' in file.read_text()
    assert read_shares(tmp_path / "none") == {}


def test_every_recorded_share_is_of_a_path() -> None:
    assert set(read_shares(FILE)) <= {*PATHS, *SHOWN, *(f"{name}-toy" for name in PATHS)}


def test_both_sides_take_turns_behind_a_warm_up_and_multiply_adds_are_counted() -> None:
    seen: list[str] = []

    def ours() -> None:
        seen.append("a")
        torch.ones(100, 200) @ torch.ones(200, 50)

    found = measure("x", HotPath("a", "b", ours, lambda: seen.append("b") or sum(range(1000)), pairs=3))
    goes = (len(seen) - 2) // 6  # of a side in a turn: one is too short to be timed
    assert goes > 1
    assert "".join(seen) == "ab" + "a" * goes + "b" * goes + "b" * goes + "a" * goes + "a" * goes + "b" * goes
    assert found.gmacs == 1e-3
    assert {"times", "of_gemm"} <= set(found.shares)


def test_a_batch_repeats_its_videos() -> None:
    batch = repeating(random_batch(load_backbone(TINY, "shipped"), 5, 2), 3)
    assert batch.plain_videos == (0, 1, 2, 0, 1)
    assert torch.equal(batch.frames[0], batch.frames[3])
    assert not torch.equal(batch.frames[0], batch.frames[1])


@pytest.mark.parametrize("name", ["texts", "ranking", "xpool"])
def test_the_plain_way_gives_the_same(name: str, tmp_path: Path) -> None:
    PATHS[name](tmp_path, True)  # compares both where it makes them
