"""The slow attention of a search equals the fused one where nothing is masked, and has a gradient where a mask is."""

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.backbone.clip import BlockSeams
from ctvr.methods.layers.reduction.diffrate_search import masked_attention
from ctvr.methods.layers.reduction.reducers import combine


@pytest.fixture
def heads():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))


def test_with_every_key_kept_it_is_the_fused_attention(heads):
    q, k, v = heads
    bias = torch.randn(2, 1, 1, 5, dtype=torch.float64)
    weights = masked_attention(q @ k.mT / 2 + bias, torch.ones(2, 5))
    torch.testing.assert_close(weights @ v, F.scaled_dot_product_attention(q, k, v, attn_mask=bias), rtol=0, atol=1e-5)


def test_the_released_formula_entry_by_entry_with_masked_keys(heads):
    logits = heads[0] @ heads[1].mT
    kept = torch.tensor([[1.0, 1, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.float64)
    found = masked_attention(logits, kept)
    for g, h, i in ((0, 0, 0), (0, 2, 2), (1, 1, 4)):
        e = [float((logits[g, h, i, j] - logits[g, h, i].max()).exp()) for j in range(5)]
        factor = [1.0 if i == j else float(kept[g, j]) for j in range(5)]
        total = sum(a * b for a, b in zip(e, factor)) + 1e-6
        assert found[g, h, i].tolist() == pytest.approx([(a * b + 1e-6 / 5) / total for a, b in zip(e, factor)])
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))


def test_masked_key_has_a_gradient(heads):
    logits, kept = heads[0] @ heads[1].mT, torch.ones(2, 5, dtype=torch.float64)
    kept[:, 2] = 0.0
    kept.requires_grad_()
    masked_attention(logits, kept)[0, 0, 1, 2].backward()
    e = (logits[0, 0, 1] - logits[0, 0, 1].max()).exp()
    assert kept.grad is not None
    torch.testing.assert_close(kept.grad[0, 2], e[2] / (e.sum() - e[2]), rtol=1e-4, atol=0)


def test_a_block_takes_it_by_its_seam_alone(small_clip, batch):
    tower, calls = small_clip.vision, []

    def mix(q, k, v, bias, state):
        calls.append(bias)
        return masked_attention(q @ k.mT / q.shape[-1] ** 0.5, torch.ones(len(q), q.shape[2])) @ v

    plain = tower(batch.frames)
    seams = [BlockSeams(mix=mix), *[BlockSeams()] * (len(tower.blocks) - 1)]
    torch.testing.assert_close(tower(batch.frames, seams), plain, rtol=1e-4, atol=1e-5)
    assert calls == [None]
    with pytest.raises(ValueError, match="two plug-ins replace the attention of block 0"):
        combine(seams, seams)
