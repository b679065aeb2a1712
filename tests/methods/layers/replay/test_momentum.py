import copy

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.layers.replay.momentum import (
    Encoders,
    Momentum,
    Negatives,
    ema_update,
    lerp_,
    momentum_contrast,
    reverse_ema_update,
)
from ctvr.methods.layers.replay.queues import Pair
from tests.methods.conftest import make_batch
from tests.methods.steps import weights


def unit_pair(rows: int, dim: int = 8, seed: int = 0) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    return Pair(*(F.normalize(torch.randn(rows, dim, generator=generator), dim=-1) for _ in range(2)))


def negatives(rows: int, count: int, seed: int = 1) -> Negatives:
    return Negatives(unit_pair(count, seed=seed), torch.zeros(rows, count, dtype=torch.bool))


def towers(value: float) -> torch.nn.Linear:
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, value)
    return module.double()


def test_without_negatives_loss_and_gradient_are_zero():
    queries = Pair(*(x.requires_grad_() for x in unit_pair(4)))
    loss = momentum_contrast(queries, [unit_pair(4, seed=2)], negatives(4, 0), 0.07)
    loss.backward()
    assert loss.item() == 0
    assert queries.video.grad.abs().max() == 0
    assert queries.text.grad.abs().max() == 0


def test_with_the_other_keys_of_the_batch_it_is_symmetric_infonce():
    q, k = unit_pair(5), unit_pair(5, seed=2)
    loss = momentum_contrast(q, [k], Negatives(k, torch.eye(5, dtype=torch.bool)), 0.07)
    target = torch.arange(5)
    expected = F.cross_entropy(q.video @ k.text.mT / 0.07, target) + F.cross_entropy(q.text @ k.video.mT / 0.07, target)
    torch.testing.assert_close(loss, expected)


def test_order_of_the_queue_does_not_matter_and_a_longer_one_costs_more():
    q, k, n = unit_pair(4), unit_pair(4, seed=2), negatives(4, 6)
    loss = momentum_contrast(q, [k], n, 0.07)
    order = torch.randperm(6)
    shuffled = Negatives(Pair(n.keys.video[order], n.keys.text[order]), n.spared)
    torch.testing.assert_close(momentum_contrast(q, [k], shuffled, 0.07), loss)
    assert momentum_contrast(q, [k], Negatives.join([n, negatives(4, 1, seed=5)]), 0.07) > loss


def test_spared_keys_count_nothing():
    q, k, n = unit_pair(4), unit_pair(4, seed=2), negatives(4, 6)
    spared = n.spared.clone()
    spared[:, 3:] = True
    short = Negatives(Pair(n.keys.video[:3], n.keys.text[:3]), n.spared[:, :3])
    torch.testing.assert_close(
        momentum_contrast(q, [k], Negatives(n.keys, spared), 0.07), momentum_contrast(q, [k], short, 0.07)
    )


def test_two_equal_branches_are_one_branch():
    q, k, n = unit_pair(4), unit_pair(4, seed=2), negatives(4, 6)
    twice = momentum_contrast(q, [k, k], Negatives.join([n, n]), 0.07)
    torch.testing.assert_close(twice, momentum_contrast(q, [k], n, 0.07))


def test_two_positives_stand_in_one_sum():
    q, k, other, n = unit_pair(1), unit_pair(1, seed=2), unit_pair(1, seed=3), negatives(1, 3)
    tau = 0.5

    def one_way(query, positives, keys):
        p = sum(torch.exp(query[0] @ x[0] / tau) for x in positives)
        return -torch.log(p / (p + torch.exp(keys @ query[0] / tau).sum()))

    expected = one_way(q.video, [k.text, other.text], n.keys.text) + one_way(
        q.text, [k.video, other.video], n.keys.video
    )
    torch.testing.assert_close(momentum_contrast(q, [k, other], n, tau), expected)


def test_the_loss_is_float32_under_autocast():
    q, k, n = unit_pair(4), unit_pair(4, seed=2), negatives(4, 6)
    expected = momentum_contrast(q, [k], n, 0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(momentum_contrast(q, [k], n, 0.07), expected)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_equal_weights_are_a_fixed_point_bit_for_bit(share):
    a = torch.nn.Linear(9, 9)
    b = copy.deepcopy(a)
    lerp_(a, b, share)
    assert torch.equal(a.weight, b.weight)


def test_share_zero_and_one_are_exact():
    a, b = torch.nn.Linear(9, 9), torch.nn.Linear(9, 9)
    before = weights(a)
    ema_update(a, b, 1.0)
    reverse_ema_update(a, b, 1.0)
    assert torch.equal(weights(a), before)
    ema_update(a, b, 0.0)
    assert torch.equal(weights(a), weights(b))


@pytest.mark.parametrize(
    ("m", "m_hat", "branches", "velocity"),
    [(0.99, 0.99, 1, 0.4975), (0.99, 0.9, 1, 0.083), (0.99, 1.0, 1, 1.0), (0.99, 0.99, 2, 0.3300)],
)
def test_a_constant_step_reaches_the_velocity_of_the_closed_form(m, m_hat, branches, velocity):
    theta, momenta = towers(0.0), [towers(0.0) for _ in range(branches)]
    for _ in range(3000):
        last = theta.weight.item()
        theta.weight.data += 1.0  # g
        for momentum in momenta:
            reverse_ema_update(theta, momentum, m_hat)
        for momentum in momenta:
            ema_update(momentum, theta, m)
    assert theta.weight.item() - last == pytest.approx(velocity, abs=6e-4)
    combined = m_hat**branches
    assert theta.weight.item() - last == pytest.approx(combined * (1 - m) / (1 - m * combined), rel=1e-3)


def test_momentum_encoders_stay_in_evaluation_mode(small_clip):
    encoders = Encoders(small_clip)
    momentum = Momentum(encoders, 4)
    momentum.train()
    assert not any(module.training for module in momentum.modules())
    assert not {id(p) for p in momentum.parameters()} & {id(p) for p in encoders.parameters()}
    batch = make_batch()
    keys = momentum.keys(batch.frames, batch.tokens)
    assert not keys.video.requires_grad
    torch.testing.assert_close(keys.text, encoders.text(batch.tokens))


@pytest.mark.parametrize("text_pool", ["eot", "avg"])
def test_mixing_all_of_one_caption_is_that_caption(small_clip, text_pool):
    encoders = Encoders(small_clip, text_pool)
    first, second = make_batch(seed=1).tokens, make_batch(seed=2).tokens
    torch.testing.assert_close(encoders.mixed_text(first, second, 1.0), encoders.text(first))
    torch.testing.assert_close(encoders.mixed_text(first, second, 0.0), encoders.text(second))
    torch.testing.assert_close(encoders.mixed_text(first, second, 0.3), encoders.mixed_text(second, first, 0.7))


def test_average_pooling_ignores_what_follows_the_caption(small_clip):
    encoders = Encoders(small_clip, "avg")
    tokens = make_batch().tokens
    alone = torch.cat([encoders.text(row[None]) for row in tokens])
    torch.testing.assert_close(encoders.text(tokens), alone)
    hidden, eot = small_clip.text.hidden(tokens[:1])
    torch.testing.assert_close(alone[0], F.normalize(hidden[0, : int(eot[0]) + 1].mean(0), dim=-1))
