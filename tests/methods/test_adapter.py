import pytest
import torch

from ctvr.methods.adapter import Adapter, AdapterConfig, Bottleneck
from ctvr.methods.backbone.clip import record_tokens
from tests.methods.conftest import make_batch


@pytest.mark.parametrize("placement", ["after_mlp", "beside_mlp", "after_attention"])
def test_each_placement_starts_as_clip_and_can_leave_it(small_clip, placement):
    method, frames = Adapter(AdapterConfig(placement=placement), small_clip), make_batch(2, 2).frames
    with torch.no_grad():
        plain = small_clip.vision(frames)
        torch.testing.assert_close(method.encode_frames(frames), plain)
        for module in method.adaptation.vision:
            module.up.weight.normal_(0, 0.3)
        assert (method.encode_frames(frames) - plain).abs().max() > 1e-2


def test_the_bottleneck_acts_on_each_token_alone(small_clip):
    module = Adapter(AdapterConfig(), small_clip).adaptation.vision[0]
    torch.nn.init.normal_(module.up.weight)
    x, order = torch.randn(2, 5, 32), torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(module(x)[:, order], module(x[:, order]))


def test_multiply_adds_are_those_of_two_small_matrices_per_token(small_clip):
    with record_tokens() as states, torch.no_grad():
        Adapter(AdapterConfig(), small_clip).encode_video(make_batch(2, 3).frames)
    assert states[0].extra_macs == 2 * 3 * 17 * 4 * 2 * 32 * 8


def test_the_bottleneck_bends_by_gelu():
    module, x = Bottleneck(2, 2), torch.tensor([[1.0, -1.0]])
    with torch.no_grad():
        for linear in (module.down, module.up):
            linear.weight.copy_(torch.eye(2))
            linear.bias.zero_()
        torch.testing.assert_close(module(x), torch.nn.functional.gelu(x))
