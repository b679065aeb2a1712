"""CLIP4Clip's sequential headers: they are residual, ordered in time, and have the size of the paper's code."""

import pytest
import torch

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.clip4clip import FrameLSTM, FrameTransformer
from tests.methods.conftest import make_small_clip


@pytest.fixture
def clip():
    return make_small_clip(embed_dim=32)


@pytest.fixture
def frames():
    return torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))


def headers(clip):
    return FrameLSTM(32), FrameTransformer(clip.text, 32)


def test_the_parameters_are_those_of_the_papers_code():
    clip = load_backbone("ViT-B-32-quickgelu", "random")
    lstm, transformer = FrameLSTM(512), FrameTransformer(clip.text, 512)
    assert sum(p.numel() for p in lstm.parameters()) == 2_101_248
    assert sum(p.numel() for p in transformer.parameters()) == 12_648_960


def test_the_copied_layer_norms_have_the_eps_that_is_asked_for(clip, frames):
    """CLIP4Clip's code has 1e-12, CLIP 1e-5; small frames distinguish the two."""
    plain, released = FrameTransformer(clip.text, 32), FrameTransformer(clip.text, 32, eps=1e-12)
    norms = [module.eps for module in released.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert set(norms) == {1e-12}
    assert {module.eps for module in clip.text.modules() if isinstance(module, torch.nn.LayerNorm)} == {1e-5}
    for header in (plain, released):
        header.positions.data.zero_()
    assert not torch.allclose(plain(0.003 * frames), released(0.003 * frames), atol=1e-3)
    assert torch.allclose(plain(frames), released(frames), atol=1e-3)


def test_zero_blocks_give_twice_the_frames_plus_positions(clip, frames):
    header = FrameTransformer(clip.text, 32)
    with torch.no_grad():
        for block in header.blocks:
            for linear in (block.attn.out, block.mlp[-1]):
                linear.weight.zero_()
                linear.bias.zero_()
        torch.testing.assert_close(header(frames), 2 * frames + header.positions[:5])


def test_an_lstm_without_weights_leaves_the_frames(frames):
    header = FrameLSTM(32)
    with torch.no_grad():
        for parameter in header.parameters():
            parameter.zero_()
        assert torch.equal(header(frames), frames)


def test_lstm_is_in_training_mode_wherever_a_gradient_is_taken(frames):
    """EWC takes gradients in evaluation mode, in which cuDNN refuses to train an LSTM."""
    header = FrameLSTM(32).eval()
    header(frames)
    assert header.lstm.training
    with torch.no_grad():
        header(frames)
    assert not header.lstm.training


def test_an_lstm_does_not_look_ahead_and_the_transformer_does(clip, frames):
    changed = frames.clone()
    changed[:, -1] = -changed[:, -1]
    for header, looks in zip(headers(clip), (False, True)):
        first = torch.allclose(header(changed)[:, 0], header(frames)[:, 0], atol=1e-6)
        assert first != looks


def test_a_video_does_not_see_another_one(clip, frames):
    for header in headers(clip):
        torch.testing.assert_close(header(frames[1:2]), header(frames)[1:2], atol=1e-5, rtol=1e-5)


def test_the_transformer_is_a_copy_of_the_text_tower(clip):
    header = FrameTransformer(clip.text, 32, layers=3)
    assert len(header.blocks) == 3
    assert torch.equal(header.positions, clip.text.positional_embedding)
    assert torch.equal(header.blocks[2].attn.in_weight, clip.text.blocks[2].attn.in_weight)
    assert not {p.data_ptr() for p in header.parameters()} & {p.data_ptr() for p in clip.parameters()}
    assert len(FrameTransformer(clip.text, 32, layers=9).blocks) == 4  # all there are
