"""Momentum contrast on several workers: the same as on one."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from methods.base import Batch, Method
from methods.bmu_moco import BMUMoCo, BMUMoCoConfig
from methods.co2l_moco import Co2LMoCo, Co2LMoCoConfig
from tests.methods.conftest import MadeAgain, make_batch, make_small_clip, make_task

WORKERS = 2


def make(strategy: bool) -> Method:
    config = BMUMoCoConfig(queue_size=10, method_start_task=1, inbatch_negatives=True)
    base = BMUMoCo(config, make_small_clip(layers=1))
    return Co2LMoCo(Co2LMoCoConfig(memory=4), base) if strategy else base


def rows_of(batch: Batch, rows: torch.Tensor) -> Batch:
    """Some pairs of a batch, with all that it says about them."""
    return Batch(**{name: None if field is None else field[rows] for name, field in vars(batch).items()})


def train(method: Method, rank: int = 0, size: int = 1) -> list[torch.Tensor]:
    """Two tasks of two steps on this worker's rows; returns the whole state."""
    method.read_pairs_from(MadeAgain())
    for index in range(2):
        torch.manual_seed(index)
        method.begin_task(make_task(index))
        parameters = [p for group in method.param_groups() for p in group["params"]]
        batches = [make_batch(6, 2, seed=10 * index + i) for i in range(2)]
        for batch in batches:
            rows = torch.arange(6).chunk(size)[rank]
            part = rows_of(batch, rows)
            method.zero_grad()
            torch.stack(list(method.losses(part).values())).sum().backward()
            learning = [p for p in parameters if p.grad is not None]
            gradient = torch.cat([p.grad.flatten() for p in learning])
            if size > 1:
                dist.all_reduce(gradient)
            for parameter, part in zip(learning, gradient.split([p.numel() for p in learning])):
                parameter.data -= 0.05 * part.view_as(parameter) / size
            method.after_step()
        torch.manual_seed(50 + index)
        method.end_task(make_task(index), iter(batches))
    return [value.detach().clone() for value in method.state_dict().values()]


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORKERS)
    try:
        states = [train(make(strategy), rank, WORKERS) for strategy in (False, True)]
        torch.save(states, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("workers"))
    mp.spawn(worker, (folder,), nprocs=WORKERS)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(WORKERS)]


@pytest.mark.slow
def test_two_workers_end_where_one_does(states):
    for found, expected in zip(states[0][0], train(make(False)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [0, 1])
def test_weights_queues_and_memory_agree_on_all_workers(states, strategy):
    assert all(torch.equal(a, b) for a, b in zip(states[0][strategy], states[1][strategy], strict=True))
