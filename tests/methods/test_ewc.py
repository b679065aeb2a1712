import copy

import pytest
import torch

from ctvr.methods.cclip import CCLIP, CCLIPConfig
from ctvr.methods.ewc import EWC, EWCConfig
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.lora import Lora
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import train_stream, train_task


def make(base, **settings):
    return EWC(EWCConfig(**settings), copy.deepcopy(base))


def batches(task):
    return [make_batch(4, 2, seed=10 * task + i) for i in range(3)]


def second_task(method):
    train_task(method, make_task(0), batches(0))
    method.begin_task(make_task(1))
    for parameter in method.parameters():
        parameter.requires_grad_(True)
    method.zero_grad()
    return method


def test_the_fisher_is_the_mean_of_squared_gradients_at_the_new_weights(base):
    method = make(base)
    train_task(method, make_task(0), batches(0))
    expected = 0
    for batch in batches(0):
        method.base.zero_grad()
        scores = method.base.encode_text(batch.tokens) @ method.base.encode_video(batch.frames).mT
        contrastive(method.base.scale() * scores).backward()
        expected = expected + method.base.backbone.vision.proj.grad**2 / 3
    torch.testing.assert_close(getattr(method, "fisher-backbone-vision-proj"), expected, rtol=1e-4, atol=1e-9)
    assert torch.equal(getattr(method, "anchor-backbone-vision-proj"), method.base.backbone.vision.proj)


def test_the_term_is_half_the_weight_times_the_weighted_distance(base):
    method = second_task(make(base, weight=6.0))
    with torch.no_grad():
        method.base.backbone.vision.proj.add_(0.1)
    fisher = getattr(method, "fisher-backbone-vision-proj")
    term = method.losses(make_batch())["consolidation"]
    torch.testing.assert_close(term, 3 * 0.01 * fisher.sum(), rtol=1e-4, atol=1e-9)


def test_a_retriever_keeps_its_own_terms(small_clip):
    method = second_task(make(CCLIP(CCLIPConfig(rank=4), small_clip)))
    assert set(method.losses(make_batch())) == {"contrastive", "ckc", "consolidation"}


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_former_tasks_count_decay_times_as_much(base, decay):
    method, other = (second_task(make(base, decay=decay)) for _ in range(2))
    name = "fisher-backbone-vision-proj"
    before = getattr(method, name).clone()
    getattr(other, name).zero_()
    for each in (method, other):
        each.end_task(make_task(1), iter(batches(1)))
    torch.testing.assert_close(getattr(method, name), decay * before + getattr(other, name), rtol=1e-4, atol=1e-9)


def test_the_fisher_of_frozen_weights_is_not_kept(small_clip):
    method = EWC(EWCConfig(), Lora(Lora.Config(), small_clip))
    train_stream(method, tasks=1)
    kept = [name for name in method.state_dict() if name.startswith("fisher-")]
    trained = sum(len(group["params"]) for group in method.param_groups())
    assert 0 < len(kept) == trained


def test_without_weight_nothing_is_stored(base):
    method = make(base, weight=0.0)
    train_stream(method, tasks=2)
    assert set(method.state_dict()) == {f"base.{name}" for name in base.state_dict()}
