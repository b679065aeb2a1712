"""Optimizer and learning rate schedule of one task. Both are made anew for each task, as the papers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from methods.base import ParamGroup


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How the tasks of a stream are optimised. Defaults: CTVR (arXiv:2503.10111), section 5.1."""

    name: Literal["adamw", "adamw_hf"] = "adamw"  # adamw_hf: the old AdamW of the released CTVR code
    epochs: int = 20  # per task
    lr_scale: float = 1.0  # multiplies every learning rate of the method
    weight_decay: float = 0.2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    decay_bias_and_norm: bool = False  # True decays every tensor, as the released CTVR code does
    warmup: float = 0.1  # fraction of a task's steps
    warmup_tasks: Literal["first", "all"] = "all"
    warmup_from: Literal["first", "zero"] = "first"  # step i of w: (i + 1) / w, or i / w as released
    schedule: Literal["cosine", "constant", "first_epoch"] = "cosine"
    num_cycles: float = 0.5  # 0.5: down to 0 once. The released CTVR code uses 1.0: down and up again
    first_epoch_scale: float = 0.1  # schedule=first_epoch: factor after the first epoch (BMU-MoCo)
    grad_clip: float | None = 1.0  # norm over all trained parameters
    accumulate: int = 1  # batches per step, whose gradient is that of one large batch (accumulate.py)
    checkpoint_activations: bool = False  # a block's activations are computed again, not kept: less memory, same bits

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError(f"epochs must be >= 0, got {self.epochs}. Use 0 to train nothing.")
        if not (all(0 <= beta < 1 for beta in self.betas) and self.eps > 0):
            raise ValueError(
                f"betas must lie in [0, 1) and eps above 0, got {self.betas} and {self.eps}. Use 0.9,0.999."
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be a number >= 0, got {self.weight_decay}. Use 0 for none.")
        if not (0 <= self.lr_scale < math.inf and math.isfinite(self.num_cycles)):
            raise ValueError(f"lr_scale must be >= 0, got {self.lr_scale}. Use 1 for the method's own rates.")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a fraction of the steps in [0, 1), got {self.warmup}. Use 0.1 for 10 %.")
        if self.grad_clip is not None and self.grad_clip <= 0:
            raise ValueError(f"grad_clip must be > 0, got {self.grad_clip}. Use none to clip nothing.")
        if self.accumulate < 1:
            raise ValueError(f"accumulate counts batches per step and must be >= 1, got {self.accumulate}.")


class AdamWHF(torch.optim.Optimizer):
    """AdamW as the transformers library had it and the released CTVR code uses it.

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
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                correction = math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
                p.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-group["lr"] * correction)
                if group["weight_decay"]:
                    p.add_(p, alpha=-group["lr"] * group["weight_decay"])


def make_optimizer(groups: Iterable[ParamGroup], config: OptimConfig) -> torch.optim.Optimizer:
    """An optimizer over a method's groups; each torch group keeps its peak rate as `peak`."""
    torch_groups: list[dict[str, Any]] = []
    for group in groups:
        matrices = [p for p in group["params"] if config.decay_bias_and_norm or p.ndim > 1]
        vectors = [p for p in group["params"] if not config.decay_bias_and_norm and p.ndim <= 1]
        for params, decay in ((matrices, config.weight_decay), (vectors, 0.0)):
            if params:
                torch_groups.append(
                    {"params": params, "peak": group["lr"] * config.lr_scale, "weight_decay": decay, "lr": 0.0}
                )
    if config.name == "adamw_hf":
        return AdamWHF(torch_groups, config.betas, config.eps)
    return torch.optim.AdamW(torch_groups, betas=config.betas, eps=config.eps, foreach=False)


def lr_factor(step: int, steps: int, steps_per_epoch: int, is_first_task: bool, config: OptimConfig) -> float:
    """Multiplier of every peak rate at optimizer step `step` (0-based) of `steps` in one task."""
    warm = 0 if config.warmup_tasks == "first" and not is_first_task else int(config.warmup * steps)
    if step < warm:
        return (step + (config.warmup_from == "first")) / warm
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "first_epoch":
        return 1.0 if step < steps_per_epoch else config.first_epoch_scale
    progress = min(1.0, (step - warm) / max(1, steps - warm))
    return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * config.num_cycles * progress)))


def shares(sizes: Sequence[int], accumulate: int) -> list[float]:
    """What the loss of each batch counts for in its optimizer step: its part of the pairs of the step's batches.

    A loss is a mean over pairs, so the step is that of one batch which holds them all, also where the last
    group of an epoch has fewer batches, or a batch fewer pairs. Every worker has the same part of each
    batch, so the shares hold on all of them.

    Args:
        sizes: pairs of the epoch's batches, > 0.
        accumulate: batches per step.
    """
    groups = [sizes[start : start + accumulate] for start in range(0, len(sizes), accumulate)]
    return [size / sum(group) for group in groups for size in group]


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Put every group at `factor` of its peak rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def train_only(module: nn.Module, groups: Iterable[ParamGroup]) -> list[nn.Parameter]:
    """Let exactly the parameters in `groups` learn and everything else build no graph.

    Returns them in order.

    Raises:
        ValueError: if a tensor is handed over twice or belongs to another module.
    """
    trained: dict[int, nn.Parameter] = {}
    for group in groups:
        for parameter in group["params"]:
            if id(parameter) in trained:
                raise ValueError(f"param_groups() hands over a tensor of group {group['name']!r} twice.")
            trained[id(parameter)] = parameter
    own = {id(parameter) for parameter in module.parameters()}
    if strangers := set(trained) - own:
        raise ValueError(f"param_groups() hands over {len(strangers)} tensors that are no parameters of the method.")
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    return list(trained.values())
