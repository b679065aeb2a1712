"""A step of several batches has the gradient of one large batch, or is refused with a reason."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from unittest.mock import Mock

import pytest
import torch

from ctvr.methods import METHODS
from ctvr.methods.backbone import blocks, clip, umt
from ctvr.methods.base import Batch
from ctvr.orchestrator.learning.run.factory import make_method
from ctvr.orchestrator.learning.training import grad_cache
from ctvr.orchestrator.learning.training.grad_cache import accumulation_mode, backward
from ctvr.orchestrator.learning.training.optimizer import freeze_except
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.conftest import RegeneratedPairs, make_batch, make_small_clip, make_task
from tests.refusing import refuses

# What cannot be exact, and what the refusal names
REFUSED = {"lump": "mix_level=input", "lump_moco": "mix_level=input"}
TRAINED = [name for name in METHODS if name not in {"zero_shot", "head_ridge", "lump", "lump_moco"}]
CASES: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in TRAINED),
    ("lump", {"method.mix_level": "feature"}),
    ("lump_moco", {"method.mix_level": "feature"}),
    ("co2l", {"method.base": "structalign"}),
    ("der", {"method.base": "base_moco"}),
    ("lwf", {"method.base": "camoe", "method.student": "each"}),
    ("vr_lwf", {"method.student": "each"}),
    ("structalign", {"method.pseudo": "clip", "method.pair_weight": 0.5, "method.pads_are_words": True}),
]


def made(name: str, task: int = 1, **more: object):
    """Build a method at the start of `task`, with the state of former tasks: buffers, queues, statistics."""
    settings = {"method": name, "stream": "s", "data.num_frames": 4, "data.batch_size": 8, **more}
    settings |= {} if name != "vr_lwf" else {"method.sentences": 20}
    torch.manual_seed(0)
    method = make_method(resolve(settings), make_small_clip())
    method.set_pair_source(RegeneratedPairs())
    for index in range(task + 1):
        method.begin_task(make_task(index))
        freeze_except(method, method.param_groups())
        if index < task:
            former = make_batch(8, frames=4, seed=index)
            method.losses(former)  # keys wait for the queues
            method.after_step()
            method.end_task(make_task(index), [former])
            method.on_gallery_stored(make_task(index), torch.nn.functional.normalize(torch.randn(3, 16), dim=-1))
    with torch.no_grad():  # away from the teachers
        for parameter in method.parameters():
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn_like(parameter)
    return method


def parts(batch: Batch, *sizes: int) -> list[Batch]:
    given = {f.name: getattr(batch, f.name) for f in fields(Batch)}
    columns = {name: x.split(sizes) for name, x in given.items() if x is not None}
    return [Batch(**dict(zip(columns, row))) for row in zip(*columns.values())]


@pytest.mark.parametrize("name", REFUSED)
def test_accumulation_that_is_not_exact_is_refused_with_its_reason(name):
    method = made(name, 0)
    assert accumulation_mode(method, 1) == "pairs"
    with refuses("optim.accumulation_steps=1", REFUSED[name], where="optim.accumulation_steps"):
        accumulation_mode(method, 2)


@pytest.mark.parametrize(("name", "more"), CASES, ids=str)
def test_batches_of_a_step_are_one_large_batch(name, more):
    whole = made(name, **more).eval()  # dropout and routing noise off
    parted, batch = copy.deepcopy(whole), make_batch(8, frames=4, seed=5)
    assert accumulation_mode(parted, 2) == "features"
    torch.manual_seed(3)
    expected = whole.losses(batch)
    torch.stack(list(expected.values())).sum().backward()
    torch.manual_seed(3)
    with most_rows() as rows:
        terms = backward(parted, parts(batch, 3, 3, 2), nullcontext)
    assert max(rows, default=3) == 3  # no graph holds more rows; a head has no graph through a tower
    assert terms.keys() == expected.keys()
    for term, value in expected.items():
        torch.testing.assert_close(terms[term], value, atol=1e-6, rtol=1e-5)
    gradients = {key: p.grad for key, p in whole.named_parameters() if p.grad is not None}
    found = {key: p.grad for key, p in parted.named_parameters() if p.grad is not None}
    assert gradients.keys() == found.keys()
    assert max(float(grad.abs().max()) for grad in gradients.values()) > 1e-4
    for key, grad in gradients.items():
        torch.testing.assert_close(found[key], grad, atol=4e-6 * float(1 + grad.abs().max()), rtol=1e-4)
    for method in (whole, parted):  # other state after a step: queues, averages, counts
        method.after_step()
    for mine, other in zip(parted.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("limit", [1, 4000, grad_cache.BUCKET])
def test_workers_average_gradients_in_buckets(limit, monkeypatch):
    """The other worker has the same gradients, so their mean is bit-identical to them."""
    alone = made("clip4clip").eval()
    together, batches = copy.deepcopy(alone), parts(make_batch(8, frames=4, seed=5), 4, 4)
    backward(alone, batches, nullcontext)
    sent: list[torch.Tensor] = []

    def double(x: torch.Tensor) -> None:
        sent.append(x)
        x *= 2

    monkeypatch.setattr(grad_cache, "BUCKET", limit)
    there = {"is_initialized": lambda: True, "get_world_size": lambda: 2, "all_reduce": double}
    monkeypatch.setattr(grad_cache, "dist", Mock(**there))
    backward(together, batches, nullcontext)
    gradients = {key: p.grad for key, p in alone.named_parameters() if p.grad is not None}
    for key, p in together.named_parameters():
        assert (p.grad is None) == (key not in gradients)
        assert p.grad is None or torch.equal(p.grad, gradients[key])
    buckets = sent[1:]  # after one for which gradients there are
    assert sum(x.numel() for x in buckets) == sum(grad.numel() for grad in gradients.values())
    assert all(x.nbytes <= limit or x.numel() in {grad.numel() for grad in gradients.values()} for x in buckets)
    least, most = {1: (len(gradients),) * 2, 4000: (2, len(gradients) - 1)}.get(limit, (1, 1))
    assert least <= len(buckets) <= most


@contextmanager
def most_rows() -> Iterator[list[int]]:
    """Count the captions or videos that pass a tower at once with a graph."""
    rows: list[int] = []
    plain = blocks.run_blocks

    def spy(tower, x, seams, state, *rest, **named):
        if torch.is_grad_enabled():
            rows.append(state.batch)
        return plain(tower, x, seams, state, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        for tower in (clip, umt):
            patch.setattr(tower, "run_blocks", spy)
        yield rows


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


def test_what_is_counted_in_a_step_is_counted_once():
    method = made("moe_adapter").train()
    counts = [buffer for name, buffer in method.named_buffers() if name.endswith("used")]
    before = sum(int(count.sum()) for count in counts)
    backward(method, parts(make_batch(6, frames=4), 3, 3), nullcontext)
    assert sum(int(count.sum()) for count in counts) - before == 6 * method.config.top_k * len(counts)
