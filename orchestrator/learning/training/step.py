"""Optimizer step of the task loop, which the checks of a method also use.

`sum(losses)` is minimized; a step changes the parameters by their complete gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ctvr.methods.base import Method
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.training.optimizer import set_learning_rates
from ctvr.orchestrator.settings.optim_config import OPTIMIZERS, OptimConfig


def total_of(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of named losses, a scalar."""
    return torch.stack(list(terms.values())).sum()


def complete_gradient(method: Method, parameters: Sequence[nn.Parameter], optim: OptimConfig) -> Tensor:
    """Apply the method's `before_step` and `optim.grad_clip` to the gradient; return its norm before the clipping."""
    method.before_step()
    return nn.utils.clip_grad_norm_(parameters, math.inf if optim.grad_clip is None else optim.grad_clip)


def take_step(
    method: Method,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    optim: OptimConfig,
    factor: float = 1.0,
) -> Tensor:
    """Change the parameters by their gradients, with the method's hooks before and after; return the gradient's norm.

    Args:
        factor: multiplies every learning rate; see `lr_factor`.
    """
    norm = complete_gradient(method, parameters, optim)
    set_learning_rates(optimizer, factor, optim.final_lr)
    optimizer.step()
    torch.autograd.graph.increment_version(parameters)  # fused optimizers do not increment version counters
    optimizer.zero_grad(set_to_none=True)
    method.after_step()
    return norm


def require_finite(parameters: Iterable[nn.Parameter], config: OptimConfig) -> None:
    """Check the weights that an optimizer of another package has trained.

    Raises:
        ConfigError: if a weight is not finite.
    """
    if config.name not in OPTIMIZERS.built_in and not all(bool(p.isfinite().all()) for p in parameters):
        remedy = "Use a smaller optim.lr_scale, or another optimizer."
        raise ConfigError(f"{config.name} set weights that are not finite", OPTIMIZERS.setting, remedy=remedy)
