"""Frozen weights are cast once and not in each step, and the numbers stay the same."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.frozen_casts import cast_once, frozen_casts
from ctvr.methods.layers.replay.momentum import lerp_
from tests.methods.conftest import make_batch, make_small_clip


def in_bf16() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.fixture
def clip() -> Clip:
    return make_small_clip().requires_grad_(False)


def features(clip: Clip) -> Tensor:
    batch = make_batch()
    with in_bf16(), torch.no_grad():
        return torch.cat([clip.text(batch.tokens), clip.vision(batch.frames).flatten(0, 1)])


def test_features_are_those_of_autocast_bit_for_bit(clip: Clip) -> None:
    expected = features(clip)
    with frozen_casts():
        assert all(torch.equal(features(clip), expected) for _ in range(3))


def test_a_frozen_weight_has_one_cast_from_its_second_reading_on(clip: Clip) -> None:
    weight = clip.text.blocks[0].attn.in_weight  # type: ignore[union-attr]
    with frozen_casts(), in_bf16():
        assert cast_once(weight) is weight
        kept = cast_once(weight)
        assert kept.dtype == torch.bfloat16
        assert cast_once(weight) is kept
        with torch.autocast("cpu", enabled=False):
            assert cast_once(weight) is weight
    with in_bf16():
        assert cast_once(weight) is weight


def test_trained_weights_are_left_to_autocast(clip: Clip) -> None:
    weight = clip.requires_grad_(True).text.blocks[0].attn.in_weight  # type: ignore[union-attr]
    with frozen_casts(), in_bf16():
        assert all(cast_once(weight) is weight for _ in range(3))


def test_a_momentum_encoder_that_moves_is_read_as_it_is(clip: Clip) -> None:
    moved, other = make_small_clip().requires_grad_(False), make_small_clip()
    for parameter in other.parameters():
        parameter.data.mul_(2.0)
    with frozen_casts():
        for _ in range(3):
            features(clip)
            lerp_(clip, other, 0.1)
            lerp_(moved, other, 0.1)
        found = features(clip)
    assert torch.equal(found, features(moved))
