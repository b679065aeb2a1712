"""Strategies that move captions back to the model that stored the videos, whatever the map and the retriever."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

from ctvr.methods import METHODS, find_method
from ctvr.methods.base import Capabilities, Method, l2_normalize
from ctvr.methods.families.compensation import Link, QueryCompensation
from ctvr.methods.lambda_orthogonality import RelaxedConfig
from ctvr.methods.settings import SettingError
from ctvr.methods.zero_shot import ZeroShot
from tests.methods.conftest import make_batch, make_small_clip, make_task
from tests.methods.steps import begin, train_stream
from tests.methods.tables import learned_tables
from tests.refusing import refused, refuses

STRATEGIES = [name for name in METHODS if issubclass(find_method(name), QueryCompensation)]
BASES = ["clip4clip", "xpool", "framefusion_moe", "moe_adapter", "base_moco"]
SETTINGS = {
    "framefusion_moe": {"rank": 4, "lora_alpha": 16.0},
    "moe_adapter": {"num_experts": 4, "bottleneck": 4},
    "base_moco": {"queue_size": 10},
}
TOKENS = make_batch(4, 2, seed=9).tokens


def short(strategy: str) -> Any:
    """Return settings of a strategy whose fit has few steps."""
    fit: dict[str, Any] = {
        "xbt": {"steps": 20, "lr": 1e-4, "noise": 0.0},
        "lambda_orthogonality": {"map": RelaxedConfig(steps=20)},
    }
    return find_method(strategy).Config(**fit.get(strategy, {}))


def made(strategy: str, base: str) -> QueryCompensation:
    torch.manual_seed(0)
    retriever, cls = find_method(base), find_method(strategy)
    within = retriever(retriever.Config(**SETTINGS.get(base, {})), make_small_clip(layers=2))
    return cls(short(strategy), within)  # type: ignore[return-value]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_retriever_with_one_vector_a_caption_can_be_wrapped(strategy, base):
    """For the current task features are bit-identical to the retriever's; moved features have the same length."""
    method = made(strategy, base)
    train_stream(method, tasks=3, steps=1, lr=1e-2)
    method.eval()
    with torch.no_grad():
        own = [method.base.encode_text(TOKENS, task) for task in range(3)]
        found = [method.encode_text(TOKENS, task) for task in range(3)]
    assert torch.equal(found[2], own[2])
    for task in range(2):
        if base != "moe_adapter":  # there captions of a former task may use experts that are frozen since
            assert not torch.equal(found[task], own[task])
        torch.testing.assert_close(found[task].norm(dim=1), own[task].norm(dim=1))
    assert method.text_passes == (0 if method.base.declared.task_conditioned_text else 1)
    if method.text_passes:
        with torch.no_grad():
            once = method.encode_text_once(TOKENS)
        assert all(torch.equal(method.move_text(once, task), found[task]) for task in range(3))
    rows = [len(link.identity) for link in method.links]
    assert rows == ([1, 2] if method.base.declared.task_conditioned_text else [1, 1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_untrained_retriever_keeps_its_features_to_the_bit(strategy, small_clip):
    cls = find_method(strategy)
    method = cls(short(strategy), ZeroShot(ZeroShot.Config(), small_clip))
    for index in range(3):
        method.begin_task(make_task(index))
        method.end_task(make_task(index), [make_batch(4, 2, seed=index)])
    with torch.no_grad():
        assert torch.equal(method.encode_text(TOKENS, 0), method.base.encode_text(TOKENS))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_old_model_is_gone_after_the_task_and_gets_no_gradient(strategy, base):
    cls = find_method(strategy)
    method = cls(short(strategy), copy.deepcopy(base))
    train_stream(method, tasks=1, steps=1)
    begin(method, 1)
    sum(method.losses(make_batch()).values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is None for p in method.teacher.module.parameters())
    method.eval()
    method.end_task(make_task(1), [make_batch()])
    assert method.teacher is None
    assert not any("teacher" in name for name in method.state_dict())


class Doubling(Link):
    """The same map for every caption, chosen so that the order of maps matters."""

    def __init__(self, number: int) -> None:
        super().__init__(1)
        self.number = number

    def _fit(self, row, new, old):
        self.fitted = new, old

    def forward(self, x, row):
        return x @ torch.tensor([[1.0, float(self.number)], [0.0, 1.0]])


class Chain(QueryCompensation):
    def make_link(self, width, rows):
        return Doubling(len(self.links) + 1)


def test_maps_are_fitted_to_unit_features_and_applied_newest_first():
    tables = [torch.tensor([[3.0, 4.0], [1.0, 0.0]]) * (1 + t) + t for t in range(3)]
    method = learned_tables(Chain(None, Method()), tables)
    for index, link in enumerate(method.links):
        new, old = link.fitted
        torch.testing.assert_close(new, l2_normalize(tables[index + 1]))
        torch.testing.assert_close(old, l2_normalize(tables[index]))
    x = l2_normalize(tables[2])
    one = l2_normalize(method.links[1](x, 0))
    two = l2_normalize(method.links[0](one, 0))
    length = tables[2].norm(dim=1, keepdim=True)
    numbers = torch.tensor([[0], [1]])
    torch.testing.assert_close(method.encode_text(numbers, 1), one * length)
    torch.testing.assert_close(method.encode_text(numbers, 0), two * length)


def test_a_retriever_whose_stored_videos_never_age_has_nothing_to_adapt_to():
    head = find_method("head_linear")
    Chain.check_base(None, head, head.Config(side="both"))
    refused(lambda: Chain.check_base(None, head, head.Config()), kind=SettingError, write="base.side=both")


class Words(Method):
    def encode_text(self, tokens, task=None):
        return torch.zeros(len(tokens), 3, 4)


def test_captions_of_several_vectors_are_refused():
    assert Capabilities(several_text_vectors=True) != Capabilities()
    structalign = find_method("structalign")
    call = partial(Chain.check_base, None, structalign, structalign.Config())
    refused(call, kind=SettingError, write="<base>=clip4clip", settings=["base"])
    method = Chain(None, Words())
    method.begin_task(make_task(0))
    with refuses("Words", "base", kind=ValueError):
        method.begin_task(make_task(1))
