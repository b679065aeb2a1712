"""Gradients of one optimizer step: summed over its batches, for each loss term, and recomputed at other weights.

Shapes: P trained weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method
from ctvr.methods.capabilities import overrides
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.grad_cache import accumulation_mode, backward
from ctvr.orchestrator.learning.training.step import complete_gradient, total_of
from ctvr.orchestrator.learning.training.unique_videos import Losses
from ctvr.orchestrator.settings.optim_config import OptimConfig


class StepGradients:
    """Accumulator of the gradients of a step's batches in the parameters, averaged over all workers.

    If a method overrides `combine_gradients`, it gets the gradient of each loss term. If it overrides `make_optimizer`,
    the batches of a step are kept, so that `recompute` can use them.
    """

    def __init__(
        self,
        method: Method,
        parameters: Sequence[nn.Parameter],
        optim: OptimConfig,
        workers: Workers,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Store the arguments.

        Args:
            method: method whose `losses` are differentiated.
            parameters: trained parameters.
            optim: settings of the optimizer.
            workers: group of processes over which gradients are averaged.
            autocast: function that returns the context of a forward pass.

        Raises:
            ConfigError: if `optim.accumulation_steps` does not suit the method.
        """
        self.method, self.parameters, self.optim = method, parameters, optim
        self.workers, self.autocast = workers, autocast
        is_exact = accumulation_mode(method, optim.accumulation_steps) == "features"
        self.is_exact = is_exact and optim.accumulation_steps > 1
        self.combines, self.keeps = overrides(method, "combine_gradients"), overrides(method, "make_optimizer")
        self._losses: nn.Module = Losses(method)
        self._step: list[tuple[Batch, float, bool]] = []  # batches of the current step that are needed again
        self._is_over = False
        self._terms: dict[str, Tensor] = {}  # term -> its gradient (P,), summed over the batches of the step so far
        self._reached: set[int] = set()  # indices of parameters on which a term depends

    def begin_epoch(self) -> None:
        """Wrap the losses in DDP if there are several workers, except for a method with `combine_gradients`."""
        losses = Losses(self.method)
        self._losses = losses if self.combines else self.workers.wrap_ddp(losses)

    def add(self, batch: Batch, weight: float, is_last: bool) -> dict[str, Tensor] | None:
        """Add the gradient of a batch; return the terms of its loss, or None if a later call returns them.

        Args:
            batch: pairs of this worker.
            weight: see `batch_weights`.
            is_last: whether the optimizer step follows.
        """
        if self._is_over:
            self._step.clear()
        self._is_over = is_last
        if self.is_exact or self.keeps:
            self._step.append((batch, weight, is_last))
        if self.is_exact and not is_last:
            return None
        terms = self._backward(batch, weight, is_last)
        if not self.keeps and is_last:
            self._step.clear()
        return terms

    def recompute(self) -> None:
        """Compute the gradients of the step's batches again at the current weights; call `before_step` and clip."""
        for parameter in self.parameters:
            parameter.grad = None
        with torch.enable_grad():
            for given in self._step[-1:] if self.is_exact else self._step:
                self._backward(*given)
        complete_gradient(self.method, self.parameters, self.optim)

    def _backward(self, batch: Batch, weight: float, is_last: bool) -> dict[str, Tensor]:
        if self.is_exact:
            return backward(self.method, [kept for kept, _, _ in self._step], self.autocast)
        syncs = nullcontext() if self.combines else self.workers.no_sync_unless_last(self._losses, is_last)
        with self.autocast(), syncs:
            terms: dict[str, Tensor] = self._losses(batch)
        if not self.combines:
            (total_of(terms) * weight).backward()
            return terms
        for name, term in terms.items():
            if term.requires_grad:
                (term * weight).backward(retain_graph=True)
            taken = self._take()
            self._terms[name] = self._terms[name] + taken if name in self._terms else taken
        if is_last:
            self._combine()
        return terms

    def _take(self) -> Tensor:
        """Return the gradients (P,) of the last backward pass and remove them from the parameters."""
        parts = []
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self._reached.add(index)
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parts.append(grad.detach().reshape(-1).float())
            parameter.grad = None
        return torch.cat(parts)

    @torch.no_grad()
    def _combine(self) -> None:
        """Set gradients from `combine_gradients`, or None for a parameter on which no term depends."""
        terms, self._terms = self._terms, {}
        reached = torch.tensor(
            [index in self._reached for index in range(len(self.parameters))], dtype=torch.int32, device="cpu"
        )
        self._reached = set()
        if self.workers.size > 1:
            dist.all_reduce(reached)
            for gradient in terms.values():
                dist.all_reduce(gradient)
                gradient /= self.workers.size
        sizes = [parameter.numel() for parameter in self.parameters]
        whole = self.method.combine_gradients(terms)
        if not isinstance(whole, Tensor) or whole.shape != (sum(sizes),):
            raise ContractViolation(
                f"combine_gradients() must return one gradient of the shape ({sum(sizes)},), got "
                f"{tuple(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__}"
            )
        for parameter, part, is_reached in zip(self.parameters, whole.split(sizes), reached.tolist()):
            parameter.grad = part.view_as(parameter).to(parameter.dtype) if is_reached else None
