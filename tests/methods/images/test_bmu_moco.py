"""Properties of any construction of BMU-MoCo over images."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ctvr.methods.base import Batch
from ctvr.methods.images.bmu_moco import ImageBMUConfig, ImageBMUMoCo
from tests.methods.conftest import make_task


class Flat(nn.Module):
    width = 5

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x.flatten(1)))


def made(**settings: object) -> ImageBMUMoCo:
    torch.manual_seed(2)
    return ImageBMUMoCo(ImageBMUConfig(width=7, queue_size=8, **settings), Flat()).train()  # type: ignore[arg-type]


def batch(seed: int = 0) -> Batch:
    frames = torch.randn(6, 3, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    return Batch(frames, torch.zeros(6, 0, dtype=torch.int64), torch.arange(6), torch.zeros(6, dtype=torch.int64))


def weights(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach().clone()


def shift(method: ImageBMUMoCo) -> None:
    """Change the weights as an optimizer's step does."""
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter += torch.linspace(0.1, 0.4, parameter.numel()).view_as(parameter)


def test_keys_use_batch_statistics_and_queues_fill_after_the_step():
    method = made()
    method.begin_task(make_task(0))
    queries = method.encoder.pair(batch())
    for momentum in method.momenta:
        torch.testing.assert_close(momentum.keys(batch()).text, queries.text.detach())
    assert method.losses(batch())["contrastive"].item() == 0  # no negatives
    assert [len(momentum.queue) for momentum in method.momenta] == [0, 0]
    method.after_step()
    assert [len(momentum.queue) for momentum in method.momenta] == [6, 6]
    loss = method.losses(batch(1))["contrastive"]
    loss.backward()
    assert loss.item() > 0
    assert all(parameter.grad is None for momentum in method.momenta for parameter in momentum.parameters())


def test_a_task_resets_the_local_encoder_and_keeps_the_global_one():
    method = made()
    method.begin_task(make_task(0))
    shift(method)
    method.after_step()
    kept = weights(method.global_)
    method.begin_task(make_task(1))
    assert torch.equal(weights(method.local), weights(method.encoder))
    assert torch.equal(weights(method.global_), kept)
    assert not torch.equal(kept, weights(method.encoder))


@pytest.mark.parametrize(("m_hat", "task"), [(0.8, 1), (1.0, 1), (0.8, 0)])
def test_the_distance_of_both_encoders_shrinks_by_m_and_m_hat(m_hat, task):
    method = made(use_global=False, m=0.9, m_hat=m_hat)
    method.begin_task(make_task(task))
    shift(method)
    learned, before = weights(method.encoder), weights(method.encoder) - weights(method.local)
    method.after_step()
    share = 0.9 * (m_hat if task else 1.0)
    torch.testing.assert_close(weights(method.encoder) - weights(method.local), share * before, rtol=0, atol=1e-5)
    assert torch.equal(weights(method.encoder), learned) == (m_hat == 1 or task == 0)


@pytest.mark.parametrize("start", [2, 3])
def test_global_encoder_enters_the_loss_from_its_start_task(start):
    for index in range(4):
        method = made(method_start_task=start)
        for task in range(index + 1):
            method.begin_task(make_task(task))
        found = method.losses(batch())["contrastive"].item()
        with torch.no_grad():
            for parameter in method.global_.encoder.parameters():
                parameter += torch.linspace(-0.5, 0.9, parameter.numel()).view_as(parameter)
        method.global_.queue.enqueue(method.local.keys(batch(3)), torch.arange(6))
        assert (method.losses(batch())["contrastive"].item() == found) == (index + 1 < start)
