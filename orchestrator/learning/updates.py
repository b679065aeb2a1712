"""Optimizers as released codes have them, where they compute something else than torch's own.

With g the gradient, p the weight, eta the rate, wd the decay, t = 1, 2, ... the steps of a tensor:

    m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
    AdamWHF    p -= eta sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps);   then p -= eta wd p
    BertAdam   p -= eta (m / (sqrt(v) + eps) + wd p)

A tensor without a gradient is skipped, its decay too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class AdamWHF(torch.optim.Optimizer):
    """AdamW as the transformers library had it: in the codes of CTVR, X-Pool, CLIP-ViP and TempMe.

    It differs from torch's: eps is added to sqrt(v) before the bias correction, and the decay is taken
    after the step, from the updated weights.
    """

    def __init__(self, params: Any, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m, v, steps = _moments(self.state[p], p, p.grad, beta1, beta2)
                correction = math.sqrt(1 - beta2**steps) / (1 - beta1**steps)
                p.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-group["lr"] * correction)
                if group["weight_decay"]:
                    p.add_(p, alpha=-group["lr"] * group["weight_decay"])


class BertAdam(torch.optim.Optimizer):
    """Adam of the first BERT codes: in CLIP4Clip (modules/optimization.py) and MV-Adapter.

    It differs from torch's: there is no bias correction, the decay is taken from the weights before the step, and every
    tensor's gradient is clipped by itself, to `max_norm` (None: not at all).
    """

    def __init__(self, params: Any, betas: tuple[float, float], eps: float, max_norm: float | None) -> None:
        self.max_norm = max_norm
        super().__init__(params, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if self.max_norm is not None:
                    nn.utils.clip_grad_norm_(p, self.max_norm)
                m, v, _ = _moments(self.state[p], p, p.grad, *group["betas"])
                update = m / v.sqrt().add_(group["eps"])
                p.add_(update.add_(p, alpha=group["weight_decay"]), alpha=-group["lr"])


def _moments(state: dict[str, Any], p: Tensor, grad: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor, int]:
    """m, v and the number of steps of one tensor, this step included."""
    if not state:
        state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
    state["step"] += 1
    m: Tensor = state["m"].mul_(beta1).add_(grad, alpha=1 - beta1)
    v: Tensor = state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    return m, v, int(state["step"])
