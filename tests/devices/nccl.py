"""Several simulated GPUs: NCCL's collectives run over gloo, and gradients are averaged as DDP averages them.

A process has one pretended GPU. Collectives of its tensors need contiguous ones, all of the device. Those of CPU
tensors and of objects run over gloo unchanged, as with `cpu:gloo,cuda:nccl`. DDP itself needs a backend in C++. Its
replacement here averages after the backward pass and handles parameters that some or all workers have not used. The
real DDP is tested on CPUs (tests/workers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.orchestrator.learning.training.distributed import all_parameters_used
from tests.devices.fake_cuda import Pretended, Trespass


def _hosts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the numbers of tensors of one device in the form that a collective accepts."""
    ours = [x for x in tensors if isinstance(x, Pretended)]
    if not ours:
        return list(tensors)
    if len(ours) < len(tensors):
        raise Trespass("a collective of tensors on the CPU and on cuda:0")
    if not all(x.is_contiguous() for x in ours):
        raise Trespass("NCCL wants contiguous tensors")
    return [x.host for x in ours]


def _all_gather(plain: Callable[..., Any], parts: list[Tensor], x: Tensor, *given: Any, **named: Any) -> Any:
    *hosts, own = _hosts([*parts, x])
    return plain(hosts, own, *given, **named)


def _in_place(plain: Callable[..., Any], x: Tensor, *given: Any, **named: Any) -> Any:
    return plain(_hosts([x])[0], *given, **named)


class _AtEnd(torch.autograd.Function):
    """Calls its owner at the end of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Averaging) -> Tensor:
        ctx.owner = owner
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if not ctx.owner.is_queued:
            ctx.owner.is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(ctx.owner.average)
        return grad, None


class Averaging(nn.Module):
    """Replacement for DDP, with the interface that the loop uses."""

    def __init__(
        self,
        module: nn.Module,
        find_unused_parameters: bool,
        forward_sync_buffers: bool,
        gradient_as_bucket_view: bool,
    ) -> None:
        super().__init__()
        assert find_unused_parameters or all_parameters_used(module)
        assert gradient_as_bucket_view
        assert not forward_sync_buffers
        self.module, self.is_queued, self.is_apart = module, False, False
        self.finds = find_unused_parameters
        for value in module.state_dict().values():
            dist.broadcast(value, src=0)

    def forward(self, *given: Any) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.module(*given)
        return terms if self.is_apart else {name: _AtEnd.apply(term, self) for name, term in terms.items()}

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.is_apart = True
        yield
        self.is_apart = False

    @torch.no_grad()
    def average(self) -> None:
        """Average over workers every gradient that any of them has; gradients that no worker has stay None."""
        self.is_queued = False
        learning = [p for p in self.module.parameters() if p.requires_grad]
        assert self.finds or all(p.grad is not None for p in learning), "DDP would fail in the next step"
        is_used = torch.tensor([p.grad is not None for p in learning], dtype=torch.int64)
        dist.all_reduce(is_used, op=dist.ReduceOp.MAX)
        used = [p for p, number in zip(learning, is_used.tolist()) if number]
        own = [torch.zeros(p.shape) if p.grad is None else p.grad.host for p in used]
        whole = torch.cat([x.flatten() for x in own])
        dist.all_reduce(whole)
        for p, part in zip(used, (whole / dist.get_world_size()).split([p.numel() for p in used])):
            p.grad = Pretended(part.view(p.shape))  # a view of the bucket, as the real one's


@contextmanager
def nccl() -> Iterator[None]:
    """Simulate workers with a GPU each, inside `pretended()` and a gloo group."""
    with ExitStack() as stack:
        for name, stands in (("all_gather", _all_gather), ("all_reduce", _in_place), ("broadcast", _in_place)):
            plain = getattr(dist, name)
            around = lambda *given, plain=plain, stands=stands, **named: stands(plain, *given, **named)
            stack.enter_context(mock.patch.object(dist, name, around))
        stack.enter_context(mock.patch.object(nn.parallel, "DistributedDataParallel", Averaging))
        yield
