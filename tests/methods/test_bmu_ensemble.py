import copy

import pytest
import torch

from ctvr.methods.bmu_ensemble import BMUEnsemble
from ctvr.methods.bmu_moco import BMUMoCo, BMUMoCoConfig
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import train_stream, train_task, weights


@pytest.fixture
def make(small_clip):
    return maker(BMUEnsemble, small_clip, queue_size=10)


@pytest.fixture
def row3(small_clip):
    return BMUMoCo(BMUMoCoConfig(queue_size=10, bmu=False), copy.deepcopy(small_clip))


def test_all_weight_on_theta_is_row_3_of_table_2_bit_for_bit(make, row3):
    method = make(ensemble_weights=(1.0, 0.0, 0.0))
    assert train_stream(method, tasks=3) == train_stream(row3, tasks=3)
    assert torch.equal(weights(method), weights(row3))


def test_until_the_end_of_its_first_task_it_is_row_3_of_table_2(make, row3):
    method = make()
    assert train_stream(method) == train_stream(row3)
    theta = [weights(encoders) for encoders in (row3.encoders, row3.local.encoders, row3.global_.encoders)]
    torch.testing.assert_close(weights(method.encoders), sum(theta) / 3)
    low, high = torch.stack(theta).min(0).values, torch.stack(theta).max(0).values
    assert ((weights(method.encoders) >= low - 1e-6) & (weights(method.encoders) <= high + 1e-6)).all()
    assert torch.equal(weights(method.local.encoders), theta[1])
    assert torch.equal(weights(method.global_.encoders), theta[2])


@pytest.mark.parametrize("chosen", [(0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.2, 0.3, 0.5)])
def test_the_ensemble_is_the_weighted_mean(make, chosen):
    method = make(ensemble_weights=chosen)
    train_stream(method, tasks=1)
    train_task(method, make_task(1), [make_batch(seed=3)])
    for encoders in (method.encoders, method.local.encoders, method.global_.encoders):
        torch.manual_seed(len(list(encoders.parameters())))
        with torch.no_grad():
            for parameter in encoders.parameters():
                parameter.add_(torch.randn(parameter.shape))
    parts = [weights(encoders) for encoders in (method.encoders, method.local.encoders, method.global_.encoders)]
    method.end_task(make_task(1), [])
    expected = sum(share * part for share, part in zip(chosen, parts))
    torch.testing.assert_close(weights(method.encoders), expected, rtol=1e-4, atol=1e-5)


def test_the_next_task_starts_from_the_ensemble(make):
    method = make()
    train_stream(method)
    method.begin_task(make_task(2))
    assert torch.equal(weights(method.local.encoders), weights(method.encoders))
