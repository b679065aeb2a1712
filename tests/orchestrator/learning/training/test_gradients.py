"""Gradients of a step: of terms, of several batches, and again at other weights; own optimizers."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from ctvr.methods.clip4clip import Clip4ClipConfig
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.tiny_models import make_batch, make_small_clip, make_task
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.grad_cache import accumulation_mode
from ctvr.orchestrator.learning.training.gradients import StepGradients
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer
from ctvr.orchestrator.learning.training.step import complete_gradient, take_step
from ctvr.orchestrator.settings.optim_config import OptimConfig
from tests.hooked_method import RHO, Hooked
from tests.refusing import refuses

OPTIM = OptimConfig(lr_scale=20.0, weight_decay=0.0)


def made(cls=Hooked):
    method = cls(Clip4ClipConfig(lr=1e-3), make_small_clip(layers=2))
    method.begin_task(make_task(0))
    method.prepare_task(make_task(0), [make_batch(4, 4, seed=9)])
    parameters = freeze_except(method, method.param_groups())
    return method, parameters, StepGradients(method, parameters, OPTIM, Workers(), nullcontext)


def gradient_of(parameters, loss: Tensor) -> Tensor:
    """Return the gradient (P,) of a scalar."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for p, g in zip(parameters, found)])


def flat(parameters) -> Tensor:
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters])


def test_a_method_combines_the_gradients_of_its_terms_over_the_batches_of_a_step():
    method, parameters, gradients = made()
    batches = [make_batch(4, 4, seed=1), make_batch(2, 4, seed=2)]
    expected: dict[str, Tensor] = {}
    for batch, weight in zip(batches, (2 / 3, 1 / 3)):
        for name in ("contrastive", "pull"):
            own = gradient_of(parameters, weight * method.losses(batch)[name])
            expected[name] = expected.get(name, 0) + own
    assert gradients.add(batches[0], 2 / 3, is_last=False).keys() == expected.keys()
    assert not flat(parameters).any()
    gradients.add(batches[1], 1 / 3, is_last=True)
    torch.testing.assert_close(flat(parameters), method.combine_gradients(expected))
    free = method.backbone.vision.blocks[0].attn.in_weight
    assert free.grad.any()
    assert method.backbone.text.token_embedding.weight.grad is not None


def test_the_default_is_the_gradient_of_the_sum():
    method, parameters, gradients = made()
    method.combine_gradients = lambda terms: super(Hooked, method).combine_gradients(terms)
    batch = make_batch(4, 4, seed=1)
    gradients.add(batch, 1.0, is_last=True)
    expected = gradient_of(parameters, torch.stack(list(method.losses(batch).values())).sum())
    torch.testing.assert_close(flat(parameters), expected)


def test_an_own_optimizer_gets_the_gradient_at_other_weights():
    """A step of SAM by hand: eq. 2 and 3 of arXiv:2010.01412, of the gradients that the method combines."""
    method, parameters, gradients = made()
    batch = make_batch(4, 4, seed=1)
    optimizer = make_optimizer(method.param_groups(), OPTIM, method, gradients.recompute)
    gradients.add(batch, 1.0, is_last=True)
    take_step(method, optimizer, parameters, OPTIM)

    by_hand, theirs, again = made()
    former = [p.detach().clone() for p in theirs]
    for moves in (True, False):
        again.add(batch, 1.0, is_last=True)
        norm = float(complete_gradient(by_hand, theirs, OPTIM))
        norm = min(norm, OPTIM.grad_clip)  # of the clipped gradient
        with torch.no_grad():
            for p, value in zip(theirs, former):
                if p.grad is not None:
                    step = RHO / norm if moves else -by_hand.config.lr * OPTIM.lr_scale
                    p.copy_(value + step * p.grad)
                    p.grad = None
    found = torch.cat([p.detach().flatten() for p in parameters])
    expected = torch.cat([p.detach().flatten() for p in theirs])
    start = torch.cat([p.flatten() for p in former])
    assert float((expected - start).norm()) > 10 * float((found - expected).norm())


def test_gradients_are_recomputed_from_all_batches_of_the_step():
    _, parameters, gradients = made()
    batches = [make_batch(4, 4, seed=seed) for seed in (1, 2, 3)]
    gradients.add(batches[0], 1.0, is_last=True)
    for parameter in parameters:
        parameter.grad = None
    gradients.add(batches[1], 0.5, is_last=False)
    gradients.add(batches[2], 0.5, is_last=True)
    first = flat(parameters)
    gradients.recompute()
    torch.testing.assert_close(flat(parameters), first / first.norm())  # the same weights: clipped to length 1


def test_a_strategy_passes_the_hooks_of_its_retriever():
    method, _, _ = made()
    strategy = Strategy(None, method)
    found = StepGradients(strategy, list(method.parameters()), OPTIM, Workers(), nullcontext)
    assert (found.combines, found.keeps) == (True, True)
    assert type(make_optimizer(strategy.param_groups(), OPTIM, strategy)).__name__ == "Sam"


def test_accumulation_over_features_is_refused_for_gradients_of_terms():
    method, _, _ = made()
    with refuses("gradient of each term", "optim.accumulation_steps=1", where="optim.accumulation_steps"):
        accumulation_mode(method, 2)


@pytest.mark.parametrize("given", [torch.zeros(3), None])
def test_a_gradient_of_another_shape_is_one_line(given):
    method, _, gradients = made()
    method.combine_gradients = lambda terms: given
    with pytest.raises(ContractViolation, match=r"combine_gradients\(\) must return one gradient of the shape"):
        gradients.add(make_batch(4, 4, seed=1), 1.0, is_last=True)


@pytest.mark.parametrize("made_of", [lambda groups: object(), lambda groups: torch.optim.SGD(groups[0]["params"])])
def test_an_optimizer_without_the_given_groups_is_one_line(made_of):
    method, _, _ = made()
    method.make_optimizer = lambda groups, recompute: made_of(groups)
    with pytest.raises(ContractViolation, match=r"make_optimizer\(\) returns .*`groups`"):
        make_optimizer(method.param_groups(), OPTIM, method)
