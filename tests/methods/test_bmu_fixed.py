import copy

import pytest
import torch

from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.bmu_fixed import BMUFixed
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import train_stream, train_task, weights


@pytest.fixture
def make(small_clip):
    return maker(BMUFixed, small_clip, queue_size=10)


def test_the_first_task_is_base_moco(make, small_clip):
    base = BaseMoCo(BaseMoCoConfig(queue_size=10), copy.deepcopy(small_clip))
    method = make()
    assert train_stream(method, tasks=1) == train_stream(base, tasks=1)
    assert torch.equal(weights(method), weights(base))


def test_the_momentum_encoders_are_the_end_of_the_previous_task(make):
    method = make()
    train_stream(method, tasks=1)
    end = weights(method.encoders)
    train_task(method, make_task(1), [make_batch(seed=i) for i in range(2)])
    assert torch.equal(weights(method.local.encoders), end)
    assert not torch.equal(weights(method.encoders), end)


def test_without_a_gradient_theta_returns_at_rate_m_hat(make):
    method = make(m_hat=0.8)
    train_stream(method, tasks=2)
    anchor = weights(method.local.encoders)
    distance = weights(method.encoders) - anchor
    for _ in range(3):
        method.after_step()
    torch.testing.assert_close(weights(method.encoders) - anchor, 0.8**3 * distance, rtol=1e-3, atol=1e-6)
