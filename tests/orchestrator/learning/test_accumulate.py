"""A step of several batches has the gradient of one large batch, or is refused by name."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields

import pytest
import torch

from methods import METHODS
from methods.base import Batch
from orchestrator.errors import ConfigError
from orchestrator.learning.accumulate import backward, way_of
from orchestrator.learning.assemble import make_method
from orchestrator.learning.optimizer import train_only
from orchestrator.learning.resolve import resolve
from tests.methods.conftest import make_batch, make_small_clip, make_task

TRAINED = ["adapter", "clip4clip", "clip_vip", "framefusion_moe", "lora", "moe_adapter", "prompt", "tempme", "xpool"]
EXACT = {*TRAINED, "zero_shot"}


def made(name: str, task: int = 1):
    settings = {"method": name, "stream": "s", "data.num_frames": 4, "data.batch_size": 8}
    method = make_method(resolve(settings), make_small_clip())
    for index in range(task + 1):
        method.begin_task(make_task(index))
        method.remember(make_task(index), torch.nn.functional.normalize(torch.randn(3, 16), dim=-1))
    train_only(method, method.param_groups())
    return method


def parts(batch: Batch, *sizes: int) -> list[Batch]:
    columns = [getattr(batch, f.name).split(sizes) for f in fields(Batch)]
    return [Batch(*row) for row in zip(*columns)]


def gradients(method) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    method.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_exact_or_refused_by_name(name):
    method = made(name, 0)
    assert way_of(method, 1)
    if name in EXACT:
        assert way_of(method, 2) == "features"
        return
    with pytest.raises(ConfigError, match=r"^optim\.accumulate: the loss of .* Write optim\.accumulate=1") as error:
        way_of(method, 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", TRAINED)
def test_batches_of_a_step_have_the_gradient_of_one_large_batch(name):
    torch.manual_seed(0)
    method, batch = made(name).eval(), make_batch(8, frames=4)  # dropout and routing noise off
    for term in method.losses(batch).values():
        term.backward(retain_graph=True)
    whole = gradients(method)
    terms = backward(method, parts(batch, 3, 3, 2), nullcontext)
    cached = gradients(method)
    assert whole.keys() == cached.keys()
    assert max(float(grad.abs().max()) for grad in whole.values()) > 1e-4
    for key, grad in whole.items():
        torch.testing.assert_close(cached[key], grad, atol=1e-5 * float(1 + grad.abs().max()), rtol=1e-4)
    torch.testing.assert_close(sum(terms.values()), sum(method.losses(batch).values()))


def test_the_second_pass_draws_what_the_first_drew():
    method, seen = made("xpool").train(), []
    plain = type(method).encode_text
    drop = torch.nn.Dropout(0.5)

    class Noisy(type(method)):
        def encode_text(self, tokens, task=None):
            features = drop(plain(self, tokens, task))
            seen.append(features.detach().clone())
            return features

    method.__class__ = Noisy
    torch.manual_seed(5)
    backward(method, parts(make_batch(6, frames=4), 3, 3), nullcontext)
    assert len(seen) == 4
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])
