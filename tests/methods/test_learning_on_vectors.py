"""Every method of METHODS on towers over vectors of two widths: it learns there, or is refused by name."""

import copy
from functools import cache

import pytest
import torch

from ctvr.methods import CONFIGURATIONS, METHODS, find_method
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer
from tests.methods.conftest import make_task
from tests.methods.vectors import Pairs, batch, made

REFUSED = {
    "camoe", "prompt", "tempme", "dgl", "mv_adapter", "plevu", "umt", "vop", "clip_vip", "lpi", "vr_lwf", "zscl",
    "tome", "evit", "sta", "diffrate", "testa", "dgl_transformer", "umt4clip", "vop_fc", "tvr_plus_cl",
}  # fmt: skip
NAMES = [*METHODS, *CONFIGURATIONS]
LEARNS = [name for name in NAMES if name not in REFUSED and name != "zero_shot"]
STRATEGIES = {  # settings under which each is the retriever that it wraps
    "lwf": {"method.weight": 0},
    "ewc": {"method.weight": 0},
    "er_ring": {"method.buffer_size": 0},
    "der": {"method.buffer_size": 0},
    "co2l": {"method.buffer_size": 0, "method.weight": 0},
}


def learned(name, seed=0, several=1, **settings):
    """Return a method after two tasks of two steps, its features of all pairs after each, and the index of task 1."""
    torch.manual_seed(seed)
    method, frames, experiment = made(name, several, **settings)
    method.set_pair_source(Pairs(frames))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed)).tolist()
    seen = []
    for index in range(2):
        rows = [20 * index + each for each in order]
        method.begin_task(make_task(index))
        groups = method.param_groups()
        freeze_except(method, groups)
        method.train()
        optimizer = make_optimizer(groups, experiment.optim) if groups else None
        for start in (0, 8):
            terms = method.losses(batch(frames, rows[start : start + 8], index))
            if optimizer is not None:
                for group in optimizer.param_groups:
                    group["lr"] = 1e-2
                optimizer.zero_grad()
                torch.stack(list(terms.values())).sum().backward()
                method.before_step()
                optimizer.step()
                method.after_step()
        method.end_task(make_task(index), [batch(frames, rows, index)])
        method.eval()
        with torch.no_grad():
            videos, texts = method.encode_video(frames), method.encode_text(torch.arange(40)[:, None], index)
            seen.append((videos, texts, method.normalize_scores(method.score(texts, videos))))
            method.on_gallery_stored(make_task(index), videos[20 * index : 20 * index + 16])
    return method, seen


@cache
def once(name):
    return learned(name, **FEW.get(name, {}))


FEW = {"lambda_orthogonality": {"method.map.steps": 5}, "xbt": {"method.steps": 5}}


@pytest.mark.parametrize("name", LEARNS)
def test_the_second_task_changes_weights_and_ranks(name):
    _, (first, second) = once(name)
    assert not torch.equal(first[1], second[1]) or not torch.equal(first[0], second[0])
    assert not torch.equal(first[2].argsort(dim=-1), second[2].argsort(dim=-1))
    assert all(torch.isfinite(each).all() for each in second)


@pytest.mark.parametrize("name", [name for name in LEARNS if name != "head_ridge"])
def test_the_default_rates_on_features_are_not_those_of_clip(name):
    settings = made(name, **FEW.get(name, {}))[2].settings
    rates = [value for key, value in settings.items() if key.startswith(("method.lr", "base.lr")) and value]
    assert rates
    assert 5e-4 <= min(rates) <= max(rates) <= 1e-2, rates


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNS)
def test_another_seed_learns_something_else(name):
    if name == "head_ridge":
        pytest.skip("a sum over pairs does not depend on their order, and no random features are drawn")
    other = learned(name, seed=1, **FEW.get(name, {}))[1][1]
    assert not torch.equal(once(name)[1][1][2], other[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LEARNS if name not in {"lump", "lump_moco"}])
def test_captions_of_several_vectors_are_learned_too(name):
    first, second = learned(name, several=3, **FEW.get(name, {}))[1]
    assert not torch.equal(first[2], second[2])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_works_inside_a_tower_is_refused_and_a_head_named(name):
    with pytest.raises(ConfigError) as caught:
        made(name)
    assert name in str(caught.value) or CONFIGURATIONS[name][0] in str(caught.value)
    assert "head_linear" in str(caught.value)


@pytest.mark.parametrize(("name", "off"), STRATEGIES.items())
@pytest.mark.parametrize("base", ["head_linear", "head_mlp"])
def test_a_strategy_at_weight_zero_is_its_head_to_the_bit(name, off, base):
    alone = learned(base)[1]
    wrapped = learned(name, **{"method.base": base, **off})[1]
    for one, other in zip(alone, wrapped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["lwf", "ewc", "er_ring", "der", "co2l", "dsl", "upper_bound"])
def test_the_index_of_a_head_of_queries_stays_to_the_bit_under_a_strategy(name):
    around = {"method.base": "head_linear", **({"method.student": "each"} if name == "lwf" else {})}
    method, (first, second) = learned(name, **around)
    assert torch.equal(first[0], second[0])
    moved = learned(name, **around, **{"base.side": "both"})[1]
    assert not torch.equal(moved[0][0], moved[1][0])
    assert copy.deepcopy(method)  # a teacher copies towers without their table


def test_every_name_learns_is_untrained_or_is_refused():
    assert set(NAMES) == {*LEARNS, *REFUSED, "zero_shot"}
    assert {name for name in METHODS if find_method(name).domain != "videos"} == set()
    assert len(LEARNS) >= 28
