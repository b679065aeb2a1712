"""Low-rank adapters of one linear layer."""

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.backbone.clip import BlockSeams
from ctvr.methods.layers.lora import LoRA


@pytest.fixture
def adapter():
    torch.manual_seed(0)
    lora = LoRA(3, 6.0, 8, 5)
    torch.nn.init.normal_(lora.B)
    return lora


def test_a_fresh_adapter_changes_nothing():
    projected = torch.randn(2, 4, 5)
    assert torch.equal(LoRA(3, 6.0, 8, 5)(torch.randn(2, 4, 8), projected), projected)


def test_merged_equals_unmerged(adapter):
    x, weight = torch.randn(2, 4, 8), torch.randn(5, 8)
    merged = F.linear(x, weight + adapter.merged_delta())
    torch.testing.assert_close(adapter(x, F.linear(x, weight)), merged, atol=1e-5, rtol=0)


def test_the_product_is_scaled_by_alpha_over_rank_and_has_that_rank(adapter):
    torch.testing.assert_close(adapter.merged_delta(), 2.0 * adapter.B @ adapter.A)
    assert torch.linalg.matrix_rank(adapter.merged_delta()) == 3


def test_it_fits_the_seams_of_a_vision_block(small_clip, batch):
    width = small_clip.vision.width
    lora = LoRA(2, 2.0, width, width)
    seams = [BlockSeams(q=lora, v=lora) for _ in small_clip.vision.blocks]
    plain = small_clip.vision(batch.frames, [*[None] * 3, BlockSeams(q=lambda y, q, state: q)])  # projected at once
    assert torch.equal(small_clip.vision(batch.frames, seams), plain)
    torch.nn.init.normal_(lora.B)
    assert not torch.allclose(small_clip.vision(batch.frames, seams), small_clip.vision(batch.frames))
