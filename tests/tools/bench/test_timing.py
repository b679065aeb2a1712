"""Both sides of a hot path take turns and compute the same."""

from pathlib import Path

import pytest
import torch

from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.load import load_backbone
from tools.bench.paths import PATHS, repeating
from tools.bench.timing import HotPath, measure, to_markdown
from tools.bench.work import random_batch


def test_both_sides_take_turns_after_a_warm_up() -> None:
    seen: list[str] = []

    def side(name: str, numbers: int) -> None:
        seen.append(name)
        sum(range(numbers))

    found = measure("x", HotPath("a", "b", lambda: side("a", 10**4), lambda: side("b", 10**5), pairs=3))
    goes = (len(seen) - 2) // 6  # of a side in a turn: one is too short to be timed
    assert goes > 1
    assert "".join(seen) == "ab" + "a" * goes + "b" * goes + "b" * goes + "a" * goes + "a" * goes + "b" * goes
    assert 0 < found.low <= found.ratio <= found.high
    assert f"| {found.ratio:.2f} ({found.low:.2f} to {found.high:.2f}) | 3 |" in to_markdown([found])


def test_a_batch_repeats_its_videos() -> None:
    batch = repeating(random_batch(load_backbone(TINY, "shipped"), 5, 2), 3)
    assert batch.unaugmented_video_ids == (0, 1, 2, 0, 1)
    assert torch.equal(batch.frames[0], batch.frames[3])
    assert not torch.equal(batch.frames[0], batch.frames[1])


@pytest.mark.parametrize("name", ["texts", "ranking", "xpool"])
def test_the_plain_way_gives_the_same(name: str, tmp_path: Path) -> None:
    PATHS[name](tmp_path, True)  # compares both where it makes them
