"""Strategies and retrievers are independent of each other."""

import copy
import math

import pytest
import torch

from ctvr.methods import find_method
from ctvr.methods.base import Frozen
from ctvr.methods.families.strategy import Strategy
from tests.methods.conftest import THREE, make_batch, make_small_clip, make_task, reducer_config
from tests.methods.steps import train_stream, train_task, weights

RETRIEVERS = {
    "clip4clip": {},
    "xpool": {},
    "clip_vip": {"num_proxies": 2},
    "moe_adapter": {"num_experts": 4, "bottleneck": 4},
    "lora": {},
    "tempme": {"reducer": reducer_config("tempme", num_frames=2, clip_groups=(2,), clip_blocks=(1,))},
    "framefusion_moe": {"rank": 4, "lora_alpha": 16.0},
    "structalign": {},
}
STRATEGIES = {
    "lwf": {},
    "vr_lwf": {"sentences": 5, "length": 4},
    "zscl": {"reference_texts": 6, "average_every": 1, "l2": 0.1, "reference_frames": 2},
    "er_ring": {"buffer_size": 4},
    "der": {"buffer_size": 4},
    "co2l": {"buffer_size": 4},
    "lump": {"buffer_size": 4},
}
# With one vector for a video, vectors of frames, of words as well, captions that differ by task; and once the others.
# test_contract.py tries all of both
TRAINED = [(strategy, retriever) for strategy in STRATEGIES for retriever in (*THREE, "framefusion_moe")]
TRAINED += [("lwf", retriever) for retriever in RETRIEVERS if retriever not in (*THREE, "framefusion_moe")]
# strategy, retriever, settings under which the strategy has no effect
IDLE = [
    ("er_ring", "clip4clip", {"buffer_size": 0}),
    ("der", "clip4clip", {"alpha": 0.0, "buffer_size": 0}),
    *(("lump", retriever, {"buffer_size": 0}) for retriever in THREE),
    *(("co2l", retriever, {"weight": 0.0, "buffer_size": 0}) for retriever in THREE),
    ("ewc", "clip4clip", {"weight": 0.0}),
    ("lwf", "clip4clip", {"weight": 0.0}),
    ("vr_lwf", "clip4clip", {"weight": 0.0, "sentences": 5, "length": 4}),
    ("zscl", "clip4clip", {"weight": 0.0, "average_every": 0}),
    ("ctp", "clip4clip", {"momentum_weight": 0.0, "cross_weight": 0.0, "same_weight": 0.0}),
    ("qdc", "clip4clip", {"query_weight": 0.0, "video_weight": 0.0}),
    ("lwf_moco", "base_moco", {"alpha": 0.0}),
    ("lump_moco", "base_moco", {"buffer_size": 0}),
    ("co2l_moco", "base_moco", {"weight": 0.0, "buffer_size": 0}),
]
# strategy, retriever, settings under which the strategy acts from the second task on
LATER = [
    ("er_ring", "clip4clip", {}),
    ("der", "clip4clip", {}),
    *(("lump", "clip4clip", {"mix_level": level}) for level in ("input", "feature")),
    *(("co2l", retriever, {"buffer_size": 6}) for retriever in THREE),
    ("ewc", "clip4clip", {}),
    ("lwf_moco", "base_moco", {}),
    ("lump_moco", "base_moco", {"buffer_size": 6}),
    ("co2l_moco", "base_moco", {"buffer_size": 6}),
]


def make(name, settings, argument):
    cls = find_method(name)
    return cls(cls.Config(**settings), argument)


def wrapped(strategy, retriever):
    torch.manual_seed(0)
    base = make(retriever, RETRIEVERS[retriever], make_small_clip(layers=2))
    return make(strategy, STRATEGIES[strategy], base)


def with_and_without(strategy, retriever, settings, tasks):
    """Train a retriever within a strategy and alone; return the losses and the weights of both."""
    torch.manual_seed(0)
    alone = make(retriever, {"queue_size": 10} if retriever == "base_moco" else {}, make_small_clip(layers=2))
    within = make(strategy, settings, copy.deepcopy(alone))
    return [(train_stream(each, tasks, lr=1e-3), weights(each)) for each in (within, alone)]


@pytest.mark.parametrize(("strategy", "retriever"), TRAINED)
def test_strategies_train_retrievers_of_every_kind(strategy, retriever):
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


@pytest.mark.parametrize(("strategy", "retriever", "settings"), IDLE)
def test_without_weight_or_memory_training_is_the_retrievers_bit_for_bit(strategy, retriever, settings):
    within, alone = with_and_without(strategy, retriever, settings, tasks=3)
    assert within[0] == alone[0]
    assert torch.equal(within[1], alone[1])


@pytest.mark.parametrize(("strategy", "retriever", "settings"), LATER)
def test_first_task_equals_the_plain_retriever(strategy, retriever, settings):
    (within, _), (alone, _) = with_and_without(strategy, retriever, settings, tasks=2)
    assert within[:3] == alone[:3]
    assert within[4:] != alone[4:]  # EWC's term is 0 in the first step of the second task


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_a_strategy_without_effect_is_the_retriever_call_for_call(retriever):
    base = make(retriever, RETRIEVERS[retriever], make_small_clip(layers=2))
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


@pytest.mark.parametrize("strategy", ["lwf", "vr_lwf", "zscl", "lwf_moco"])
def test_a_teacher_is_no_part_of_the_state(strategy):
    base = make("base_moco", {"queue_size": 4}, make_small_clip(layers=1))
    own = [f"base.{name}" for name in base.state_dict()]
    method = make(strategy, STRATEGIES.get(strategy, {}), base)
    for index in range(2):
        method.begin_task(make_task(index))
    assert isinstance(method.teacher, Frozen)
    assert list(method.state_dict()) == own
