"""Low-rank additions are merged into weights that do not change: features are equal; changing weights are not
merged.
"""

import pytest
import torch
from torch import Tensor

from ctvr.methods.backbone.blocks import BlockSeams
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.merged_weights import MergeCache, merged_weights
from ctvr.methods.base import Batch, Method
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.reduction.reducers import combine
from ctvr.methods.lora import Lora, LoraConfig
from ctvr.methods.structalign import StructAlign, StructAlignConfig
from ctvr.methods.tempme import TempMe, TempMeConfig
from tests.methods.conftest import make_batch, reducer_config

FRAMES = 4


def drawn(name: str, clip: Clip) -> Method:
    """Return a method whose low-rank parts add something, as after training."""
    method: Method = {
        "lora": lambda: Lora(LoraConfig(rank=3), clip),
        "tempme": lambda: TempMe(TempMeConfig(rank=3, reducer=reducer_config("tempme", num_frames=FRAMES)), clip),
        "structalign": lambda: StructAlign(StructAlignConfig(vision_rank=3, vision_alpha=6), clip),
    }[name]()
    torch.manual_seed(0)
    for module in method.modules():
        if isinstance(module, LoRA):
            torch.nn.init.normal_(module.B, std=0.3)
    return method.eval()


def encoded(method: Method, batch: Batch, kept: MergeCache | None = None) -> list[Tensor]:
    with torch.no_grad(), merged_weights(kept):
        return [method.encode_video(batch.frames), method.encode_text(batch.tokens, None)]


@pytest.mark.parametrize("name", ["lora", "tempme", "structalign"])
def test_features_of_weights_at_rest_are_those_of_both_parts(name: str, small_clip: Clip) -> None:
    method, batch = drawn(name, small_clip), make_batch(3, FRAMES)
    kept: MergeCache = {}
    found, again = encoded(method, batch, kept), encoded(method, batch, kept)
    with torch.no_grad():
        apart = [method.encode_video(batch.frames), method.encode_text(batch.tokens, None)]
    towers = 1 if name == "structalign" else 2  # its captions are routed
    assert len(kept) == towers * len(small_clip.vision.blocks)
    for one, other, repeated in zip(found, apart, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
        assert torch.equal(one, repeated)
    assert not torch.equal(found[0], apart[0])  # rounding: another way was taken


def test_merged_weights_follow_a_change_of_the_trained_weights(small_clip: Clip) -> None:
    method, batch = drawn("tempme", small_clip), make_batch(3, FRAMES)
    encoded(method, batch)
    with torch.no_grad():
        for parameter in method.adaptation.parameters():
            parameter.data.mul_(-1.5)  # which autograd does not count
        apart = method.encode_video(batch.frames)
    torch.testing.assert_close(encoded(method, batch)[0], apart, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["lora", "structalign"])
def test_gradients_and_low_precision_see_the_factors(name: str, small_clip: Clip) -> None:
    method, batch = drawn(name, small_clip), make_batch(3, FRAMES)
    with merged_weights():
        method.encode_video(batch.frames).sum().backward()
    pairs = 2 if name == "structalign" else 1
    seen = [module for module in method.modules() if isinstance(module, LoRA) and module.A.grad is not None]
    assert len(seen) == pairs * len(small_clip.vision.blocks)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        apart = method.encode_video(batch.frames)
        with merged_weights():
            assert torch.equal(method.encode_video(batch.frames), apart)


def test_two_additions_to_one_projection_are_not_folded_as_one(small_clip: Clip) -> None:
    lora = LoRA(2, 2, 32, 96)
    low_rank, doubled = BlockSeams(qkv=lora, fold=lora.merged_delta), BlockSeams(q=lambda y, q, state: 2 * q)
    assert combine([doubled], [low_rank])[0].fold is None
    assert combine([BlockSeams(beside=lora)], [low_rank])[0].fold == lora.merged_delta
