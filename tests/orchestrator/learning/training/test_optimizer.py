"""Schedules and optimizers equal those of the papers and the released code."""

import math
import sys

import numpy as np
import pytest
import torch

from ctvr.methods.base import ParamGroup
from ctvr.orchestrator.learning.training.custom_optimizers import _square_roots
from ctvr.orchestrator.learning.training.optimizer import (
    batch_weights,
    freeze_except,
    lr_factor,
    make_optimizer,
    set_learning_rates,
    try_optimizer,
)
from ctvr.orchestrator.learning.training.step import require_finite
from ctvr.orchestrator.settings.optim_config import OptimConfig
from tests.entry_points import install
from tests.refusing import refuses


def factors(steps: int = 100, **settings) -> list[float]:
    config = OptimConfig(warmup=0.0, **settings)
    return [lr_factor(step, steps, 10, True, config) for step in range(steps)]


def test_one_cosine_cycle_falls_to_zero_half_way_and_rises_again():
    values = factors(num_cycles=1.0)
    assert values[0] == 1
    assert values[25] == pytest.approx(0.5)
    assert values[50] == pytest.approx(0.0, abs=1e-12)
    assert values[75] == pytest.approx(0.5)
    assert values[99] > 0.99


def test_the_default_cosine_falls_to_zero_once():
    values = factors()
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.001


def test_warm_up_rises_linearly_in_the_tasks_it_is_meant_for():
    config = OptimConfig(warmup=0.1, warmup_tasks="first")
    first = [lr_factor(step, 100, 10, True, config) for step in range(11)]
    assert first[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert lr_factor(0, 100, 10, False, config) == 1
    released = OptimConfig(warmup=0.1, warmup_from="zero")
    assert [lr_factor(s, 100, 10, True, released) for s in range(10)] == pytest.approx([s / 10 for s in range(10)])


@pytest.mark.parametrize(("steps", "share", "warm"), [(7, 0.25, 1), (9, 0.3, 2), (5, 0.1, 0), (10, 0.3, 3)])
def test_a_warm_up_has_the_whole_steps_of_its_share(steps, share, warm):
    """The fraction of a step is truncated, even if it is a half or more, as by the released codes' int()."""
    config = OptimConfig(warmup=share, schedule="constant")
    found = [lr_factor(step, steps, 1, True, config) for step in range(steps)]
    assert found == pytest.approx([(step + 1) / warm for step in range(warm)] + [1.0] * (steps - warm))


def test_a_warm_up_above_one_is_a_number_of_steps():
    config = OptimConfig(warmup=4, warmup_from="zero", schedule="linear")
    found = [lr_factor(step, 10, 10, True, config) for step in range(10)]
    assert found == pytest.approx([0, 0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert lr_factor(3, 10, 10, True, OptimConfig(warmup=400)) == pytest.approx(4 / 400)


def test_a_curve_falls_to_its_final_share_and_is_not_cut_there():
    for schedule in ("cosine", "linear", "cosine_epochs", "cosine_offset1", "cosine_to_zero"):
        plain, found = factors(schedule=schedule), factors(schedule=schedule, final_share=0.2)
        assert found == pytest.approx([0.2 + 0.8 * value for value in plain])
    assert factors(least=0.2)[-1] == 0.2 < factors(final_share=0.2)[-1]


def test_a_cosine_of_epochs_is_constant_within_an_epoch():
    found = factors(30, schedule="cosine_epochs")
    assert found == pytest.approx([value for value in (1, 0.75, 0.25) for _ in range(10)])


def test_first_epoch_schedule_drops_after_the_first_epoch():
    values = factors(schedule="first_epoch")
    assert values[9] == 1
    assert values[10] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("sizes", "accumulate", "expected"),
    [
        ([4, 4, 4, 4], 2, [1 / 2] * 4),
        ([4, 4, 4], 2, [1 / 2, 1 / 2, 1]),  # the last group is short
        ([4, 4, 2], 3, [2 / 5, 2 / 5, 1 / 5]),  # the last batch is short
        ([4, 2], 8, [2 / 3, 1 / 3]),
        ([4, 4, 2], 1, [1, 1, 1]),
        ([], 2, []),
    ],
)
def test_a_batch_counts_for_its_part_of_the_pairs_of_its_step(sizes, accumulate, expected):
    assert batch_weights(sizes, accumulate) == pytest.approx(expected)


def test_lr_scale_multiplies_every_group():
    a, b = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))
    groups = [ParamGroup(name="a", params=[a], lr=1e-3), ParamGroup(name="b", params=[b], lr=2e-3)]
    optimizer = make_optimizer(groups, OptimConfig(lr_scale=10))
    set_learning_rates(optimizer, 0.5)
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([0.005, 0.01])


def test_biases_and_norms_are_decayed_only_if_asked():
    vector, matrix = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, 3))
    group = [ParamGroup(name="g", params=[vector, matrix], lr=1.0)]
    decays = {id(p): g["weight_decay"] for g in make_optimizer(group, OptimConfig()).param_groups for p in g["params"]}
    assert decays == {id(vector): 0.0, id(matrix): 0.2}
    released = make_optimizer(group, OptimConfig(decay_parameters="all")).param_groups
    assert [g["weight_decay"] for g in released] == [0.2]


def test_the_old_adamw_follows_its_formula_and_skips_what_has_no_gradient():
    p, idle = torch.nn.Parameter(torch.tensor([[1.0]])), torch.nn.Parameter(torch.tensor([[1.0]]))
    config = OptimConfig(name="adamw_hf", weight_decay=0.2)
    optimizer = make_optimizer([ParamGroup(name="g", params=[p, idle], lr=0.1)], config)
    set_learning_rates(optimizer, 1.0)
    value, m, v = 1.0, 0.0, 0.0
    for step, grad in enumerate([0.3, -0.2, 0.5], start=1):
        p.grad = torch.tensor([[grad]])
        optimizer.step()
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        value -= 0.1 * math.sqrt(1 - 0.999**step) / (1 - 0.9**step) * m / (math.sqrt(v) + 1e-6)
        value -= 0.1 * 0.2 * value
    assert p.item() == pytest.approx(value, rel=1e-5)
    assert idle.item() == 1.0


def test_exactly_what_is_handed_over_learns():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    freeze_except(module, [ParamGroup(name="g", params=[module[1].weight], lr=1.0)])
    assert [p.requires_grad for p in module.parameters()] == [False, False, True, False]


def test_roots_of_our_optimizers_are_those_of_ieee_arithmetic():
    """Those of MKL depend on the processor; numpy's root and quotient are exact."""
    v = torch.rand(10_001, generator=torch.Generator().manual_seed(0))
    v[0] = 0.0
    with np.errstate(divide="ignore"):
        exact = np.float32(1) / (np.float32(1) / np.sqrt(v.numpy()))
    np.testing.assert_array_equal(_square_roots([v])[0].numpy(), exact)
    assert float((_square_roots([v])[0] - v.sqrt()).abs().max()) < 2e-7


PLUG_IN = """
import torch
given = {}
def plain(groups, lr):
    given.update(groups=groups, lr=lr)
    return torch.optim.SGD(groups, lr=lr)
def named(groups, lr, betas, eps):
    given.update(betas=betas, eps=eps)
    return torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps)
def other(groups, lr): return [groups]
def lost(groups, lr): return torch.optim.SGD([p for group in groups for p in group["params"]], lr=lr)
def broken(groups, lr): raise ValueError("no such rate")
"""


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """Install optimizers as entry points; return a function that makes the one of a name for two groups."""
    names = ("plain", "named", "other", "lost", "broken")
    points = {name: f"plug_in_optimizers:{name}" for name in names} | {"muon": "torch.optim:Muon"}
    install(tmp_path, "rates", {"ctvr.optimizers": points}, plug_in_optimizers=PLUG_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plug_in_optimizers", raising=False)
    torch.manual_seed(0)
    a, b = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4, 3))
    groups = [ParamGroup(name="a", params=[a], lr=1e-3), ParamGroup(name="b", params=[b], lr=2e-3)]
    return lambda name, **more: make_optimizer(groups, OptimConfig(name=name, **more))


def test_an_optimizer_of_another_package_gets_rates_decay_and_the_settings_that_it_names(plug_in):
    found = plug_in("plain", lr_scale=10).param_groups
    assert [(group["peak"], group["weight_decay"]) for group in found] == [(0.01, 0.2), (0.02, 0.2)]
    given = sys.modules["plug_in_optimizers"].given
    assert set(given) == {"groups", "lr"}
    assert given["lr"] == 0.02
    plug_in("named", betas=(0.8, 0.9))
    assert (given["betas"], given["eps"]) == ((0.8, 0.9), 1e-6)
    muon = plug_in("muon", momentum=0.9)
    assert type(muon) is torch.optim.Muon
    assert muon.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize(("name", "said"), [("other", "list"), ("lost", "SGD"), ("broken", "ValueError")])
def test_an_optimizer_that_cannot_be_used_is_one_line(name, said, plug_in):
    with refuses(name, said, where="optim.name", remedy=True):
        plug_in(name)
    with refuses(name, said, where="optim.name", remedy=True):
        try_optimizer(OptimConfig(name=name))
    try_optimizer(OptimConfig(name="muon"))  # for matrices only


def test_weights_that_are_not_finite_are_refused_for_optimizers_of_others():
    weights = [torch.nn.Parameter(torch.tensor([1.0, math.inf]))]
    with refuses("theirs", where="optim.name", remedy=True):
        require_finite(weights, OptimConfig(name="theirs"))
    require_finite(weights, OptimConfig(name="adamw"))  # its losses are checked
    require_finite(weights[:0], OptimConfig(name="theirs"))
