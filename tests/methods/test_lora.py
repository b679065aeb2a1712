from __future__ import annotations

import torch

from methods.lora import Lora, LoraConfig
from tests.methods.conftest import make_batch


def test_folding_the_low_rank_path_into_the_weights_changes_nothing(small_clip):
    method, frames = Lora(LoraConfig(rank=3), small_clip), make_batch(2, 2).frames
    with torch.no_grad():
        for lora in method.adaptation.vision:
            lora.B.normal_(0, 0.3)
        unfolded = method.encode_frames(frames)
        for lora, block in zip(method.adaptation.vision, small_clip.vision.blocks):
            block.attn.in_weight += lora.merged_delta()
        torch.testing.assert_close(small_clip.vision(frames), unfolded, rtol=0, atol=1e-5)


def test_q_k_and_v_share_one_down_projection(small_clip):
    lora = Lora(LoraConfig(rank=3), small_clip).adaptation.vision[0]
    assert lora.A.shape == (3, 32)
    assert lora.B.shape == (96, 3)
    assert lora.scale == 1
    assert not lora.B.any()


def test_gradients_are_those_of_the_folded_weights(small_clip):
    """The low-rank path is added in place; autograd must not notice."""
    method, frames = Lora(LoraConfig(rank=3), small_clip), make_batch(2, 2).frames
    lora, weight = method.adaptation.vision[2], small_clip.vision.blocks[2].attn.in_weight
    with torch.no_grad():
        lora.B.normal_(0, 0.3)
    target = torch.randn(2, 2, 16)
    (method.encode_frames(frames) * target).sum().backward()
    expected = weight.grad @ lora.A.detach().mT
    torch.testing.assert_close(lora.B.grad, expected, rtol=1e-4, atol=1e-5)
