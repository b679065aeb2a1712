"""Data-parallel workers that train one model together, and their collectives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.orchestrator.errors import ContractViolation


def all_reduce_min(x: Tensor) -> Tensor:
    """Reduce x to the element-wise minimum over all workers, in place if there are several workers."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return x


def all_parameters_used(module: nn.Module) -> bool:
    """Return whether all methods and experts in `module` declare `uses_all_parameters`."""
    declared = (getattr(part, "declared", part) for part in module.modules())
    return all(getattr(each, "uses_all_parameters", True) for each in declared)


def require_gradients(module: nn.Module) -> None:
    """Check that every trained weight has a gradient.

    Raises:
        ContractViolation: if a weight lacks a gradient; the message names the first such weight.
    """
    for name, weight in module.named_parameters():
        if weight.requires_grad and weight.grad is None:
            method = next(type(part).__name__ for part in module.modules() if hasattr(part, "declared"))
            raise ContractViolation(
                f"a step does not give {name} a gradient, but {method} declares that each step gives one to every "
                "weight: return Capabilities(uses_all_parameters=False) from capabilities(config)"
            )


def patient_group(hours: float) -> Any:
    """Return a process group for waits that may take hours; every worker must call this at the same time."""
    return dist.new_group(backend="gloo", timeout=timedelta(hours=hours))


@dataclass(frozen=True)
class Workers:
    """One of the processes that train a model together; by default, the only process.

    Attributes:
        rank, size: index of this process, and number of processes.
        device: device of this process.
        patient: process group for waiting while one worker decodes, scores or encodes alone. Collectives of a step use
            the default group, whose timeout is shorter. None is the default group.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    patient: Any = field(default=None, compare=False)

    def encode_sharded(self, encode: Callable[[Any], Tensor], rows: Any, is_for_all: bool = True) -> Tensor:
        """Return `encode(rows)`, computed with the rows split over all workers.

        Args:
            is_for_all: whether every worker gets the result; otherwise only rank 0 does, and other workers get 0 rows.
        """
        if self.size == 1:
            return encode(rows)
        mine = encode(rows[self.rank :: self.size]) if len(rows) > self.rank else None
        parts = _parts(mine, self.size, self.patient, None if is_for_all else self.rank)
        if not is_for_all and self.rank:
            return parts[0]
        whole = parts[0].new_empty(len(rows), *parts[0].shape[1:])
        for rank, part in enumerate(parts):
            whole[rank :: self.size] = part
        return whole

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every worker."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.patient)
        return box[0]

    def all_reduce_mean(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the mean over workers of every value; all workers must have the same names."""
        if self.size == 1 or not values:
            return dict(values)
        names = sorted(values)
        own = [values[name] for name in names]
        whole = torch.tensor(own, dtype=torch.float64, device="cpu")  # gloo on the CPU: does not wait for the GPU
        dist.all_reduce(whole)
        found = dict(zip(names, (whole / self.size).tolist()))
        return {name: found[name] for name in values}

    def wrap_ddp(self, module: nn.Module) -> nn.Module:
        """Wrap a module in DistributedDataParallel; return it unchanged if there is one worker.

        Unless `uses_all_parameters` is set, some parameters may lack a gradient; to find them, every step traverses the
        whole graph and synchronizes the result. Buffers are equal on all workers, so steps do not broadcast them.
        Gradients are views of the buckets that DDP sends, which saves one copy of all gradients.
        """
        if self.size == 1:
            return module
        parallel: Callable[..., nn.Module] = nn.parallel.DistributedDataParallel
        names = ("forward_sync_buffers", "broadcast_buffers")  # the second name is from before torch 2.13
        unsent = next(name for name in names if name in inspect.signature(parallel).parameters)
        return parallel(
            module,
            find_unused_parameters=not all_parameters_used(module),
            gradient_as_bucket_view=True,
            **{unsent: False},
        )

    def check_gradients_once(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Check on the first optimizer step that every weight has a gradient, if several workers rely on this.

        Raises:
            ContractViolation: in that step; see `require_gradients`.
        """
        if self.size == 1 or not all_parameters_used(module):
            return

        def look(*given: Any) -> None:
            require_gradients(module)
            handle.remove()

        handle = optimizer.register_step_pre_hook(look)

    def no_sync_unless_last(self, module: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context in which `module` synchronizes gradients only for a step's last batch (DDP `no_sync`)."""
        return nullcontext() if self.size == 1 or is_last else module.no_sync()  # type: ignore[operator]

    def all_gather_union(self, names: set[str]) -> set[str]:
        """Return the union of all workers' names on every worker."""
        if self.size == 1:
            return set(names)
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, sorted(names), group=self.patient)
        return set().union(*parts)


TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
MOST_DIMENSIONS = 6


def _parts(mine: Tensor | None, size: int, group: Any = None, rank: int | None = None) -> list[Tensor]:
    """Gather the rows of all workers on the CPU, in rank order.

    Type and shape are sent first, then the raw memory; nothing is pickled.

    Args:
        mine: rows (N, ...) of this worker on the CPU, or None. N may differ between workers. The second of three
            dimensions (words) may also differ, and is padded with zeros.
        size: number of workers.
        group: process group on the CPU.
        rank: rank of this worker, if only rank 0 receives the rows; if None, every worker receives them.
    """
    head = torch.zeros(2 + MOST_DIMENSIONS, dtype=torch.int64, device="cpu")  # dimensions, type, shape
    if mine is not None:
        head[: 2 + mine.ndim] = torch.tensor([mine.ndim, TYPES.index(mine.dtype), *mine.shape])
    heads = [torch.empty_like(head) for _ in range(size)]
    dist.all_gather(heads, head, group=group)
    known = torch.stack(heads)
    ndim, dtype, *shape = known.amax(dim=0).tolist()
    own = torch.zeros(shape[:ndim], dtype=TYPES[dtype], device="cpu") if mine is None else mine
    if any(lacking := [most - length for most, length in zip(shape, own.shape)]):  # gloo needs equal shapes
        own = nn.functional.pad(own, [pads for length in reversed(lacking) for pads in (0, length)])
    flat = own.contiguous().view(-1).view(torch.uint8)
    if rank:
        dist.gather(flat, None, dst=0, group=group)
        return [own[:0]]
    buffers = [torch.empty_like(flat) for _ in range(size)]
    if rank is None:
        dist.all_gather(buffers, flat, group=group)
    else:
        dist.gather(flat, buffers, dst=0, group=group)
    return [each.view(own.dtype).view(own.shape)[:rows] for each, rows in zip(buffers, known[:, 2].tolist())]
