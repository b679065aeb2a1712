"""The processes that train one model together, and what they tell one another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def least(x: Tensor) -> Tensor:
    """The least over all workers of every number; changes x where there are several."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return x


@dataclass(frozen=True)
class Workers:
    """The processes that train one model together; a single one by default."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def spread(self, encode: Callable[[Any], Tensor], rows: Any) -> Tensor:
        """`encode(rows)`, with the rows dealt out to all workers; every worker gets the whole result."""
        if self.size == 1:
            return encode(rows)
        mine = encode(rows[self.rank :: self.size]) if len(rows) > self.rank else None
        parts: list[Tensor | None] = [None] * self.size
        dist.all_gather_object(parts, mine)
        found = [part for part in parts if part is not None]
        if found[0].ndim == 3:
            longest = max(part.shape[1] for part in found)
            found = [nn.functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in found]
        whole = found[0].new_zeros(len(rows), *found[0].shape[1:])
        for rank, part in enumerate(found):
            whole[rank :: self.size] = part
        return whole

    def agree(self, value: Any) -> Any:
        """Rank 0's value, on every worker."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def mean(self, values: Mapping[str, float]) -> dict[str, float]:
        """The mean over workers of every number; all workers have the same names."""
        if self.size == 1 or not values:
            return dict(values)
        names = sorted(values)
        whole = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(whole)
        found = dict(zip(names, (whole / self.size).tolist()))
        return {name: found[name] for name in values}

    def averaging(self, module: nn.Module) -> nn.Module:
        """The module itself where there is one worker; else one whose gradients are their means over all workers.

        Some parameters may have no gradient. Buffers are equal on all workers, so that no step sends them.
        """
        if self.size == 1:
            return module
        parallel: Callable[..., nn.Module] = nn.parallel.DistributedDataParallel
        names = ("forward_sync_buffers", "broadcast_buffers")  # before torch 2.13 it had the second name
        unsent = next(name for name in names if name in inspect.signature(parallel).parameters)
        return parallel(module, find_unused_parameters=True, **{unsent: False})

    def union(self, names: set[str]) -> set[str]:
        """The names that any worker has, on every worker."""
        if self.size == 1:
            return set(names)
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, sorted(names))
        return set().union(*parts)
