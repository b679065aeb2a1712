import copy

import pytest
import torch

from methods.base_moco import BaseMoCo, BaseMoCoConfig
from methods.bmu_fixed import BMUFixed, BMUFixedConfig
from methods.bmu_moco import BMUMoCo, BMUMoCoConfig
from methods.bmu_moco_local import BMUMoCoLocal, BMUMoCoLocalConfig
from tests.methods.conftest import make_task
from tests.methods.steps import train_stream, weights


@pytest.fixture
def make(small_clip):
    def make(**settings) -> BMUMoCoLocal:
        return BMUMoCoLocal(BMUMoCoLocalConfig(queue_size=10, **settings), copy.deepcopy(small_clip))

    return make


def test_m_hat_one_is_base_moco_bit_for_bit(make, small_clip):
    base = BaseMoCo(BaseMoCoConfig(queue_size=10), copy.deepcopy(small_clip))
    method = make(m_hat=1.0, method_start_task=1)
    assert train_stream(method) == train_stream(base)
    assert torch.equal(weights(method), weights(base))


def test_m_one_is_bmu_fixed_bit_for_bit(make, small_clip):
    config = BMUFixedConfig(queue_size=10, m_hat=0.9, method_start_task=1)
    fixed = BMUFixed(config, copy.deepcopy(small_clip))
    method = make(m=1.0, m_hat=0.9, method_start_task=1)
    assert train_stream(method) == train_stream(fixed)
    assert torch.equal(weights(method), weights(fixed))


@pytest.mark.parametrize("start", [1, 2])
def test_it_is_row_4_of_table_2_bit_for_bit(make, small_clip, start):
    config = BMUMoCoConfig(queue_size=10, use_global=False, method_start_task=start)
    row4 = BMUMoCo(config, copy.deepcopy(small_clip))
    method = make(method_start_task=start)
    assert train_stream(method) == train_stream(row4)
    assert torch.equal(weights(method), weights(row4))


def test_local_encoders_start_anew_at_every_task_and_only_there(make):
    method = make(method_start_task=1)
    train_stream(method, tasks=1)
    assert not torch.equal(weights(method.local.encoders), weights(method.encoders))
    method.begin_task(make_task(1))
    assert torch.equal(weights(method.local.encoders), weights(method.encoders))


def test_without_a_gradient_nothing_moves(make):
    method = make(method_start_task=1)
    train_stream(method, tasks=1)
    before = weights(method.encoders)
    train_stream(method, lr=0.0)
    assert torch.equal(weights(method.encoders), before)
    assert torch.equal(weights(method.local.encoders), before)


def test_the_lag_shrinks_by_m_times_m_hat(make):
    method = make(method_start_task=1, m=0.9, m_hat=0.8)
    train_stream(method, tasks=1)
    before = weights(method.encoders) - weights(method.local.encoders)
    method.after_step()
    after = weights(method.encoders) - weights(method.local.encoders)
    torch.testing.assert_close(after, 0.72 * before, rtol=1e-3, atol=1e-6)
