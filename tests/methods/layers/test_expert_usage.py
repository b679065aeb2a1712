import copy

import pytest
import torch

from ctvr.methods.backbone.clip import TokenState
from ctvr.methods.backbone.recompute import recomputing
from ctvr.methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from ctvr.methods.layers.expert_usage import usage
from ctvr.methods.structalign import StructAlign, StructAlignConfig
from ctvr.methods.structalign.adapters import LoRAExpertGroup, LoRAExperts
from tests.methods.conftest import make_batch, make_task


def usage_metrics(method) -> dict[str, float]:
    return {name: float(x) for name, x in method.batch_metrics().items() if name.startswith("expert/")}


@pytest.mark.parametrize("cls", [FrameFusionMoE, StructAlign])
def test_experts_count_every_caption_that_is_trained_on_once(small_clip, cls):
    """Task 1 of FrameFusionMoE has one expert; teachers, searches and second passes of a step are not counted."""
    torch.manual_seed(0)
    config = {FrameFusionMoE: FrameFusionMoEConfig, StructAlign: StructAlignConfig}[cls](num_experts=3, top_k=2)
    method = cls(config, small_clip)
    for index in range(2):
        method.begin_task(make_task(index))
        batch = make_batch(5)
        method.train().losses(batch)
        found = usage_metrics(method)
        assert len(found) == (1 if cls is FrameFusionMoE and index == 0 else 3)
        assert sum(found.values()) == pytest.approx(5)
        assert usage_metrics(method) == {}
        with recomputing():
            method.losses(batch)
        copy.deepcopy(method).eval().encode_text(batch.tokens)
        assert usage_metrics(method) == {}
        method.eval().end_task(make_task(index), [batch])
        method.on_gallery_stored(make_task(index), method.encode_video(batch.frames))
        assert usage_metrics(method) == {}


def test_sums_over_uneven_parts_equal_the_whole_for_any_workers(monkeypatch):
    torch.manual_seed(0)
    layer, x, eot = LoRAExperts(4, 2, 2, 1.0, 8, 8).train(), torch.randn(7, 3, 8), torch.arange(7) % 3

    def counted(*parts: slice) -> dict[str, float]:
        for part in parts:
            state = TokenState(len(x[part]), eot=eot[part])
            LoRAExpertGroup([[layer]])(0, x[part], torch.zeros(len(x[part]), 3, 8), state)
        return {name: float(value) for name, value in usage(layer).items()}

    whole = counted(slice(None))
    assert counted(slice(0, 2), slice(2, 7)) == pytest.approx(whole)
    monkeypatch.setattr("ctvr.methods.layers.expert_usage.world_size", lambda: 2)
    first, second = counted(slice(0, 2)), counted(slice(2, 7))  # the loop takes the mean of what both tell
    assert {name: (first[name] + second[name]) / 2 for name in whole} == pytest.approx(whole)
    assert usage(torch.nn.Linear(2, 2)) == {}
