from __future__ import annotations

import pytest
import torch

from methods.backbone.clip import record_tokens
from methods.tome import ToMe, ToMeConfig
from tests.methods.conftest import make_batch


@pytest.mark.parametrize("reducer", ["tome", "tome_shared"])
def test_r_patches_of_every_frame_go_in_every_block(small_clip, reducer):
    method = ToMe(ToMeConfig(reducer=reducer, r=3), small_clip)
    with record_tokens() as states, torch.no_grad():
        method.encode_video(make_batch(2, 3).frames)
    assert states[0].log == [(3, 17, 14), (3, 14, 11), (3, 11, 8), (3, 8, 5)]


def test_r_is_capped_at_half_the_patches_that_are_left(small_clip):
    method = ToMe(ToMeConfig(r=50), small_clip)
    assert [step.intra for step in method.reducer.steps] == [8, 4, 2, 1]


def test_r_0_is_lora_alone(small_clip):
    frames = make_batch(2, 3).frames
    with torch.no_grad():
        out = ToMe(ToMeConfig(r=0), small_clip).encode_frames(frames)
        assert torch.equal(out, small_clip.vision(frames))


def test_it_has_no_parameters_beside_lora(small_clip):
    assert [group["name"] for group in ToMe(ToMeConfig(), small_clip).param_groups()] == ["adaptation"]
