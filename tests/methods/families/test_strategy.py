"""Strategies and retrievers are independent: every strategy trains every retriever."""

import importlib
import math

import pytest
import torch

from ctvr.methods.base import Frozen
from ctvr.methods.families.strategy import Strategy
from tests.methods.conftest import make_batch, make_small_clip, make_task
from tests.methods.steps import train_task

RETRIEVERS = {
    "clip4clip": ("Clip4Clip", {}),
    "xpool": ("XPool", {}),
    "clip_vip": ("CLIPViP", {"num_proxies": 2}),
    "moe_adapter": ("MoEAdapter", {"num_experts": 4, "bottleneck": 4}),
    "lora": ("Lora", {}),
    "tempme": ("TempMe", {"num_frames": 2, "clip_groups": (2,), "clip_blocks": (2,)}),
    "framefusion_moe": ("FrameFusionMoE", {"rank": 4, "lora_alpha": 16.0}),
    "structalign": ("StructAlign", {}),
}
STRATEGIES = {
    "lwf": ("LwF", {}),
    "vr_lwf": ("VRLwF", {"sentences": 5, "length": 4}),
    "zscl": ("ZSCL", {"reference_texts": 6, "average_every": 1, "l2": 0.1, "reference_frames": 2}),
    "er_ring": ("ERRing", {"buffer_size": 4}),
    "der": ("DER", {"buffer_size": 4}),
    "co2l": ("Co2L", {"buffer_size": 4}),
    "lump": ("LUMP", {"buffer_size": 4}),
}


def make(table, name, argument):
    cls_name, settings = table[name]
    cls = getattr(importlib.import_module(f"ctvr.methods.{name}"), cls_name)
    return cls(cls.Config(**settings), argument)


def wrapped(strategy, retriever):
    torch.manual_seed(0)
    return make(STRATEGIES, strategy, make(RETRIEVERS, retriever, make_small_clip(layers=4)))


@pytest.mark.parametrize("retriever", RETRIEVERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_every_retriever(strategy, retriever):
    method = wrapped(strategy, retriever)
    for index in range(2):
        batches = [make_batch(4, 2, seed=2 * index + i, categories=(2 * index, 2 * index + 1)) for i in range(2)]
        losses = train_task(method, make_task(index), batches, lr=1e-4)
        assert all(math.isfinite(loss) for loss in losses)
        with torch.no_grad():
            gallery = method.encode_video(batches[0].frames)
            method.on_gallery_stored(make_task(index), gallery)
            scores = method.score(method.encode_text(batches[0].tokens, index), gallery)
        assert scores.shape[:2] == (4, 4)
        assert torch.isfinite(scores).all()
    with torch.no_grad():
        assert len(method.losses(batches[0])) > 1 or strategy in {"er_ring", "lump"}  # the strategy takes part


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_a_strategy_without_effect_is_the_retriever_call_for_call(retriever):
    base = make(RETRIEVERS, retriever, make_small_clip())
    method = Strategy(None, base)
    assert method.declared.task_conditioned_text == base.declared.task_conditioned_text
    batch, task = make_batch(4, 2), make_task(0)
    method.begin_task(task)
    method.eval()
    q, v = base.encode_text(batch.tokens), base.encode_video(batch.frames)
    assert torch.equal(method.encode_text(batch.tokens), q)
    assert torch.equal(method.encode_video(batch.frames), v)
    assert torch.equal(method.score(q, v), base.score(q, v))
    assert torch.equal(method.scale(), base.scale())
    mine, its = ([id(p) for g in m.param_groups() for p in g["params"]] for m in (method, base))
    assert mine == its


def test_a_teacher_is_no_part_of_the_state():
    method = wrapped("lwf", "clip4clip")
    method.begin_task(make_task(0))
    assert isinstance(method.teacher, Frozen)
    assert not any("teacher" in name for name in method.state_dict())
