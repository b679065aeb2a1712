import pytest
import torch

from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.lora import Lora, LoraConfig
from tests.methods.conftest import make_batch, reducer_config


def test_folding_the_low_rank_path_into_the_weights_changes_nothing(small_clip):
    method, frames = Lora(LoraConfig(rank=3), small_clip), make_batch(2, 2).frames
    with torch.no_grad():
        for lora in method.adaptation.vision:
            lora.B.normal_(0, 0.3)
        unfolded = method.encode_frames(frames)
        for lora, block in zip(method.adaptation.vision, small_clip.vision.blocks):
            block.attn.in_weight += lora.merged_delta()
        torch.testing.assert_close(small_clip.vision(frames), unfolded, rtol=0, atol=1e-5)


def test_gradients_are_those_of_the_folded_weights(small_clip):
    """The low-rank path is added in place, which must not change gradients."""
    method, frames = Lora(LoraConfig(rank=3), small_clip), make_batch(2, 2).frames
    lora, weight = method.adaptation.vision[2], small_clip.vision.blocks[2].attn.in_weight
    with torch.no_grad():
        lora.B.normal_(0, 0.3)
    target = torch.randn(2, 2, 16)
    (method.encode_frames(frames) * target).sum().backward()
    expected = weight.grad @ lora.A.detach().mT
    torch.testing.assert_close(lora.B.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["tome", "tome_shared"])
def test_as_tome_r_patches_leave_each_block_and_lora_alone_is_trained(small_clip, name):
    method = Lora(LoraConfig(reducer=reducer_config(name, r=3)), small_clip)
    with record_tokens() as states, torch.no_grad():
        method.encode_video(make_batch(2, 3).frames)
    assert states[0].log == [(3, 17, 14), (3, 14, 11), (3, 11, 8), (3, 8, 5)]
    assert [group["name"] for group in method.param_groups()] == ["adaptation"]
    assert [step.intra for step in Lora(LoraConfig(reducer=reducer_config(name, r=50)), small_clip).reducer.steps] == [
        8,
        4,
        2,
        1,
    ]
