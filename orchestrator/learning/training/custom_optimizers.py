"""Optimizers of released codes that differ from torch.optim.AdamW.

With g the gradient, p the weight, eta the learning rate, wd the weight decay, t = 1, 2, ... the steps of a tensor:

    m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
    AdamWHF    p -= eta sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps);   then p -= eta wd p
    BertAdam   p -= eta (m / (sqrt(v) + eps) + wd p)

A tensor without a gradient is skipped, and its weights do not decay. On a GPU all tensors of a group are updated
together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class AdamWHF(torch.optim.Optimizer):
    """AdamW of early versions of transformers, used by the codes of CTVR, X-Pool, CLIP-ViP and TempMe.

    It differs from torch.optim.AdamW in two points: eps is added to sqrt(v) before the bias correction, and the decay
    is applied after the step, to the updated weights.
    """

    def __init__(self, params: Any, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for some in _together(group["params"]):
                m, v, steps = _moments(self.state, some, beta1, beta2)
                below = _square_roots(v)
                torch._foreach_add_(below, group["eps"])
                factors = [-group["lr"] * (math.sqrt(1 - beta2**step) / (1 - beta1**step)) for step in steps]
                torch._foreach_addcdiv_(some, m, below, factors)
                if group["weight_decay"]:
                    torch._foreach_add_(some, some, alpha=-group["lr"] * group["weight_decay"])


class BertAdam(torch.optim.Optimizer):
    """Adam of the first BERT codes, used by CLIP4Clip (modules/optimization.py) and MV-Adapter.

    It differs from torch.optim.AdamW in three points: it lacks a bias correction, computes the decay from the
    weights before the step, and clips each tensor's gradient separately to `max_norm` (None: no clipping).
    """

    def __init__(self, params: Any, betas: tuple[float, float], eps: float, max_norm: float | None) -> None:
        self.max_norm = max_norm
        super().__init__(params, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for some in _together(group["params"]):
                if self.max_norm is not None:
                    grads = [p.grad for p in some if p.grad is not None]
                    norms = torch.stack(torch._foreach_norm(grads))
                    torch._foreach_mul_(grads, (self.max_norm / (norms + 1e-6)).clamp(max=1.0).unbind())
                m, v, _ = _moments(self.state, some, *group["betas"])
                below = _square_roots(v)
                torch._foreach_add_(below, group["eps"])
                updates = torch._foreach_div(m, below)
                torch._foreach_add_(updates, some, alpha=group["weight_decay"])
                torch._foreach_add_(some, updates, alpha=-group["lr"])


def _together(params: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group the tensors that have a gradient: all together on a GPU (fewer kernel launches), on a CPU one by one.

    The results are equal; one group needs more memory for intermediate values.
    """
    learning = [p for p in params if p.grad is not None]
    size = 1 if learning and learning[0].device.type == "cpu" else max(1, len(learning))
    for start in range(0, len(learning), size):
        yield learning[start : start + size]


def _square_roots(v: list[Tensor]) -> list[Tensor]:
    """Return sqrt(v) as 1 / rsqrt(v), which is bit-identical on all processors; MKL's square root on a CPU is not."""
    return list(torch._foreach_reciprocal(torch._foreach_rsqrt(v)))


def _moments(
    state: Mapping[Tensor, dict[str, Any]], params: Sequence[Tensor], beta1: float, beta2: float
) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Update and return m, v and the number of steps of each tensor, including this step."""
    grads = [p.grad for p in params if p.grad is not None]
    for p in params:
        if not state[p]:
            state[p].update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
        state[p]["step"] += 1
    m: list[Tensor] = [state[p]["m"] for p in params]
    v: list[Tensor] = [state[p]["v"] for p in params]
    torch._foreach_mul_(m, beta1)
    torch._foreach_add_(m, grads, alpha=1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, grads, grads, 1 - beta2)
    return m, v, [int(state[p]["step"]) for p in params]
