import copy

import pytest
import torch

from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.bmu_moco import BMUMoCo, BMUMoCoConfig
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import step, train_stream, weights

ROWS = [
    (False, True, False),
    (False, False, True),
    (False, True, True),
    (True, True, False),
    (True, False, True),
    (True, True, True),
]


@pytest.fixture
def make(small_clip):
    return maker(BMUMoCo, small_clip, queue_size=10, method_start_task=1)


@pytest.fixture
def base(small_clip):
    return BaseMoCo(BaseMoCoConfig(queue_size=10), copy.deepcopy(small_clip))


def row(bmu: bool, local: bool, global_: bool) -> dict[str, bool]:
    return {"bmu": bmu, "use_local": local, "use_global": global_}


def test_local_alone_without_review_is_base_moco_bit_for_bit(make, base):
    method = make(**row(False, True, False))
    assert train_stream(method) == train_stream(base)
    assert torch.equal(weights(method), weights(base))


@pytest.mark.parametrize("reviewing", ROWS[3:])
def test_m_hat_one_reviews_nothing_bit_for_bit(make, reviewing):
    with_review, without = make(**row(*reviewing), m_hat=1.0), make(**row(False, *reviewing[1:]))
    assert train_stream(with_review) == train_stream(without)
    assert torch.equal(weights(with_review), weights(without))


def test_the_first_task_is_base_moco_by_default(make, base):
    losses = train_stream(base, tasks=1)
    for settings in (row(*r) for r in ROWS):
        method = make(**settings, method_start_task=2)
        assert train_stream(method, tasks=1) == losses
        assert torch.equal(weights(method.encoders), weights(base.encoders))
    assert BMUMoCoConfig().method_start_task == 2
    literal = make(method_start_task=1)
    train_stream(literal, tasks=1)
    assert not torch.equal(weights(literal.encoders), weights(base.encoders))


def test_local_and_global_differ_only_by_the_start_of_a_task(make):
    local, global_ = make(**row(True, True, False)), make(**row(True, False, True))
    assert train_stream(local, tasks=1) == train_stream(global_, tasks=1)
    assert torch.equal(weights(local.encoders), weights(global_.encoders))
    assert train_stream(local) != train_stream(global_)


@pytest.mark.parametrize(("switches", "pairs"), list(zip(ROWS, [2, 2, 3, 2, 2, 3])))
def test_each_row_of_table_2_holds_its_number_of_encoder_pairs(make, small_clip, switches, pairs):
    method = make(**row(*switches))
    assert weights(method).numel() == pairs * weights(small_clip).numel()


def test_each_row_of_table_2_has_a_preset():
    for number, switches in enumerate(ROWS, 1):
        preset = BMUMoCo.PRESETS[f"table2-row{number}"]
        assert {name: preset[f"method.{name}"] for name in row(*switches)} == row(*switches)


def test_a_task_keeps_the_global_encoders_and_resets_the_local_ones(make):
    method = make()
    train_stream(method, tasks=1)
    before, queue = weights(method.global_.encoders), method.global_.queue.video.clone()
    method.begin_task(make_task(1))
    assert torch.equal(weights(method.global_.encoders), before)
    assert torch.equal(method.global_.queue.video, queue)
    assert torch.equal(weights(method.local.encoders), weights(method.encoders))
    assert not torch.equal(before, weights(method.encoders))


def test_the_global_encoders_may_start_after_the_first_task(make):
    method = make(global_init="after_task1", method_start_task=2)
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    assert torch.equal(weights(method.global_.encoders), weights(method.encoders))
    assert len(method.global_.queue) == 0


def after_one_step(method: BMUMoCo) -> tuple[torch.Tensor, ...]:
    """Return theta, theta_m, theta~_m before `after_step`, and after it."""
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    parameters = [p for group in method.param_groups() for p in group["params"]]
    step(method, parameters, make_batch(seed=7))
    update, method.after_step = method.after_step, lambda: None
    step(method, parameters, make_batch(seed=8), lr=0.5)
    before = tuple(weights(e) for e in (method.encoders, method.local.encoders, method.global_.encoders))
    update()
    return (*before, *(weights(e) for e in (method.encoders, method.local.encoders, method.global_.encoders)))


def test_encoders_first_is_equations_12_13_8_14_in_this_order(make):
    t, l, g, t2, l2, g2 = after_one_step(make(m=0.9, m_hat=0.8))  # noqa: E741
    expected = 0.8 * (0.8 * t + 0.2 * l) + 0.2 * g
    torch.testing.assert_close(t2, expected)
    torch.testing.assert_close(l2, 0.9 * l + 0.1 * expected)
    torch.testing.assert_close(g2, 0.9 * g + 0.1 * expected)
    low, high = torch.stack([t, l, g]).min(0).values, torch.stack([t, l, g]).max(0).values
    assert ((t2 >= low - 1e-6) & (t2 <= high + 1e-6)).all()


def test_momentum_first_and_simultaneous_are_the_other_two_orders(make):
    t, l, g, t2, l2, g2 = after_one_step(make(m=0.9, m_hat=0.8, order="mom_first"))  # noqa: E741
    torch.testing.assert_close(l2, 0.9 * l + 0.1 * t)
    torch.testing.assert_close(t2, 0.8 * (0.8 * t + 0.2 * l2) + 0.2 * g2)
    t, l, g, t2, l2, g2 = after_one_step(make(m=0.9, m_hat=0.8, order="simultaneous"))  # noqa: E741
    torch.testing.assert_close(t2, 0.8 * (0.8 * t + 0.2 * l) + 0.2 * g)
    torch.testing.assert_close(g2, 0.9 * g + 0.1 * t)


def test_a_review_keeps_the_parameters_of_the_optimizer(make):
    method = make()
    before = [id(p) for group in method.param_groups() for p in group["params"]]
    train_stream(method)
    assert [id(p) for group in method.param_groups() for p in group["params"]] == before
