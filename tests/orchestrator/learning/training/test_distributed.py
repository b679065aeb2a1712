"""Collectives of workers, simulated by threads; tests/workers uses real processes."""

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.methods.capabilities import Capabilities
from ctvr.methods.layers.experts import RoutingRecorder
from ctvr.orchestrator.errors import ContractViolation, NonFiniteLoss
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.loss_monitor import EpochMetrics


def on_threads(size: int, work: Callable[[Workers], Any]) -> list[Any]:
    """Run `work` on `size` workers, simulated by threads, and return their results.

    Their `all_gather` and `gather` reject unequal shapes, as gloo does, and `all_reduce` supports MIN; there are no
    others.
    """
    me, meet, given = threading.local(), threading.Barrier(size, timeout=60), [torch.empty(0)] * size

    def all_gather(parts: list[Tensor], x: Tensor, group: Any = None) -> None:
        given[me.rank] = x
        meet.wait()
        assert len({(each.shape, each.dtype) for each in (*given, *parts)}) == 1
        assert all(each.is_contiguous() and each.device.type == "cpu" for each in (*given, *parts))
        for part, each in zip(parts, given, strict=True):
            part.copy_(each)
        meet.wait()

    def gather(x: Tensor, parts: list[Tensor] | None, dst: int, group: Any = None) -> None:
        assert dst == 0
        assert (parts is None) == (me.rank > 0)  # the others have no room for the rows of all
        all_gather([torch.empty_like(x) for _ in range(size)] if parts is None else parts, x)

    def all_reduce(x: Tensor, op: Any) -> None:
        assert op == dist.ReduceOp.MIN
        parts = [torch.empty_like(x) for _ in range(size)]
        all_gather(parts, x)
        x.copy_(torch.stack(parts).amin(dim=0))

    def run(rank: int) -> Any:
        me.rank = rank
        return work(Workers(rank, size))

    there = {"is_initialized": lambda: True, "get_world_size": lambda: size}
    with (
        ThreadPoolExecutor(size) as pool,
        mock.patch.multiple(dist, all_gather=all_gather, gather=gather, all_reduce=all_reduce, **there),
    ):
        return list(pool.map(run, range(size)))


def test_waits_for_what_one_worker_does_alone_go_over_the_patient_group(monkeypatch):
    """Collectives of a step use the default group, which has another time limit."""
    seen: list[tuple[str, object]] = []

    def note(name: str, *given: Any, group: object = None, **named: object) -> None:
        seen.append((name, group))
        if name == "all_gather":
            for part in given[0]:
                part.copy_(given[1])

    for name in ("broadcast_object_list", "all_gather_object", "all_gather", "gather", "all_reduce"):
        monkeypatch.setattr(dist, name, partial(note, name))
    workers = Workers(0, 2, patient="patient")
    workers.broadcast(1)
    workers.encode_sharded(lambda rows: torch.zeros(len(rows)), range(4))
    workers.encode_sharded(lambda rows: torch.zeros(len(rows)), range(4), is_for_all=False)
    assert {group for _, group in seen} == {"patient"}
    seen.clear()
    workers.all_reduce_mean({"a": 1.0})
    assert seen == [("all_reduce", None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
@pytest.mark.parametrize("count", [7, 6, 2, 1])  # of rows; some workers have one less, or none
def test_every_worker_gets_the_rows_of_all_bit_for_bit(count, shape, dtype):
    numbers = torch.randn(*reversed(shape), count, generator=torch.Generator().manual_seed(count))
    features = numbers.to(dtype).permute(*reversed(range(numbers.ndim)))  # not contiguous in memory
    for size in (2, 3):
        found = on_threads(
            size, lambda workers: workers.encode_sharded(lambda rows: features[list(rows)], range(count))
        )
        assert all(torch.equal(one, features) and one.dtype == dtype for one in found)


@pytest.mark.parametrize("count", [7, 6, 2, 1])
def test_the_worker_that_scores_gets_the_rows_of_all_and_the_others_none(count):
    features = torch.randn(count, 3, 2, generator=torch.Generator().manual_seed(count))
    for size in (2, 3):
        first, *others = on_threads(
            size,
            lambda workers: workers.encode_sharded(lambda rows: features[list(rows)], range(count), is_for_all=False),
        )
        assert torch.equal(first, features)
        assert [other.shape for other in others] == [(0, 3, 2)] * (size - 1)


def test_words_are_padded_to_the_longest_caption_of_all_workers():
    lengths = torch.tensor([2, 5, 1, 3, 2, 1, 1])

    def encode(rows: Tensor) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.full((int(n), 2), float(n)) for n in rows], batch_first=True)

    for found in on_threads(3, lambda workers: workers.encode_sharded(encode, lengths)):
        assert torch.equal(found, encode(lengths))


def test_all_workers_stop_for_a_term_of_one_of_them_that_is_no_number():
    def train(workers: Workers) -> str:
        progress = EpochMetrics(workers.device, "task_01, epoch 1")
        progress.add({"shared": torch.tensor(1.0), "own": torch.tensor(1.0 if workers.rank else float("nan"))}, {})
        with pytest.raises(NonFiniteLoss) as stopped:
            progress.step(torch.tensor(1.0))
        return str(stopped.value)

    first, second = on_threads(2, train)
    assert first == second
    assert first.startswith("task_01, epoch 1: the loss (own) is not finite.")


class Routed(nn.Module):
    """Two weights, of which a step may use only one."""

    def __init__(self, says: bool, routes: bool = False) -> None:
        super().__init__()
        self.declared = Capabilities(uses_all_parameters=says)
        self.used, self.idle = nn.Linear(2, 1), nn.Linear(2, 1)
        if routes:
            self.experts = RoutingRecorder()


@pytest.mark.parametrize(("says", "routes", "finds"), [(True, False, False), (True, True, True), (False, False, True)])
def test_weights_without_a_gradient_are_searched_where_allowed(says, routes, finds):
    parallel = mock.Mock(__signature__=inspect.signature(nn.parallel.DistributedDataParallel))
    with mock.patch.object(nn.parallel, "DistributedDataParallel", parallel):
        Workers(0, 2).wrap_ddp(nn.Sequential(Routed(says, routes)))
    assert parallel.call_args.kwargs["find_unused_parameters"] is finds


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """Create a process group of this process alone, so that DDP itself runs without another process to wait for."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_gradients_are_views_of_what_is_sent_in_every_step():
    """Separate copies of the gradients would need as much memory again."""
    method = Routed(says=False)
    parallel = Workers(0, 2).wrap_ddp(method.used)
    optimizer = torch.optim.SGD(method.used.parameters(), lr=0.1)
    for _ in range(2):
        parallel(torch.ones(2)).sum().backward()
        gradients = [p.grad for p in method.used.parameters() if p.grad is not None]
        assert [grad.tolist() for grad in gradients] == [[[1.0, 1.0]], [1.0]]
        assert len({grad.untyped_storage().data_ptr() for grad in gradients}) == 1
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.usefixtures("group_of_one")
def test_a_weight_that_no_worker_has_used_keeps_no_gradient():
    """The optimizer would otherwise change it by its moments and its decay."""
    method = Routed(says=False)
    method.forward = lambda x: method.used(x)  # type: ignore[method-assign]
    parallel = Workers(0, 2).wrap_ddp(method)
    parallel(torch.ones(2)).sum().backward()
    assert [p.grad is None for p in method.parameters()] == [False, False, True, True]


def test_wrong_trains_all_is_named_in_the_first_step():
    method = Routed(says=True)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    Workers(0, 2).check_gradients_once(nn.Sequential(method), optimizer)
    method.used(torch.ones(2)).sum().backward()
    with pytest.raises(
        ContractViolation,
        match=r"a step does not give 0\.idle\.weight a gradient, but Routed declares .*: return Capabilities\(uses_all",
    ):
        optimizer.step()
    method.idle(torch.ones(2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()  # only the first step is checked


def test_one_worker_or_a_method_that_may_rest_expects_nothing():
    for size, says in ((1, True), (2, False)):
        method = Routed(says)
        optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
        Workers(0, size).check_gradients_once(method, optimizer)
        optimizer.step()
