from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.clip import TokenState
from ctvr.methods.layers.temporal import CrossFrameAttention, FrameFusion, neighbour

FIXTURE = Path(__file__).parents[1] / "fixtures" / "framefusion_released.npz"


@pytest.fixture
def y():
    return torch.randn(2, 5, 6, 16, generator=torch.Generator().manual_seed(0))  # B, T, N, D


def randomise(module, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return module


def test_a_border_frame_is_its_own_neighbour(y):
    assert neighbour(y, "previous")[0, :, 0, 0].tolist() == y[0, [0, 0, 1, 2, 3], 0, 0].tolist()
    assert neighbour(y, "next")[0, :, 0, 0].tolist() == y[0, [1, 2, 3, 4, 4], 0, 0].tolist()


def test_equation_1_with_loops(y):
    attention = randomise(CrossFrameAttention(16, 4))
    out = attention(y)
    for frame in range(5):
        queries, own = attention.q(y[0, max(frame - 1, 0)]), y[0, frame]
        keys, values = attention.k(own), attention.v(own)
        heads = []
        for head in range(4):
            part = slice(4 * head, 4 * head + 4)
            weights = (queries[:, part] @ keys[:, part].mT / 2).softmax(dim=-1)  # sqrt(O / h) = 2
            heads.append(weights @ values[:, part])
        torch.testing.assert_close(out[0, frame], attention.out(torch.cat(heads, dim=-1)))


def test_cross_attention_equals_the_released_code(compared):
    """Origin: `ffa/*`, one cross-frame attention of the released FrameFusionMoE code, run unmodified on CPU."""
    with np.load(FIXTURE) as file:
        data = {name: torch.from_numpy(file[name]) for name in file.files if name.startswith("ffa/")}
    attention = CrossFrameAttention(16, 4)
    attention.load_state_dict(
        {
            f"{place}.{kind}": data[f"ffa/{place}_proj.{kind}"]
            for place in ("q", "k", "v", "out")
            for kind in ("weight", "bias")
        }
    )
    x = data["ffa/x"].unflatten(1, (3, 6))
    for direction, name in (("previous", "out_even"), ("next", "out_odd")):
        compared("framefusion_moe", "forward", attention(x, direction).flatten(1, 2), data[f"ffa/{name}"])


def fuse(fusion, y, spatial):
    return fusion(y.flatten(0, 1), spatial.flatten(0, 1), TokenState(len(y), y.shape[1])).unflatten(0, y.shape[:2])


@pytest.mark.parametrize("mix", ["add", "convex"])
def test_alpha_of_zero_leaves_spatial_attention_as_it_is(y, mix):
    fusion = randomise(FrameFusion(16, 4, mix=mix))
    fusion.alpha.data.zero_()
    assert torch.equal(fuse(fusion, y, y.sin()), y.sin())


def test_zero_out_starts_as_identity_with_a_gradient(y):
    fusion = FrameFusion(16, 4, init="zero_out", alpha=1.0)
    out = fuse(fusion, y, y.sin())
    assert torch.equal(out, y.sin())
    out.square().sum().backward()
    assert fusion.attention.out.weight.grad.abs().max() > 0


def test_equation_3_adds_and_the_released_code_mixes(y):
    added, mixed = FrameFusion(16, 4, alpha=0.3), FrameFusion(16, 4, mix="convex", alpha=0.3)
    temporal = added.attention(y)
    torch.testing.assert_close(fuse(added, y, y.sin()), y.sin() + 0.3 * temporal)
    torch.testing.assert_close(fuse(mixed, y, y.sin()), 0.7 * y.sin() + 0.3 * temporal)


def test_identity_initialisation_keeps_values_and_adds_nothing(y):
    attention = CrossFrameAttention(16, 4)
    constant = y[:, :, :1].expand_as(y)  # all tokens of a frame alike: whatever the weights, the answer is the token
    torch.testing.assert_close(attention(constant), constant)
