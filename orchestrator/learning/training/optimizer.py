"""Optimizer and learning rate schedule of one task; both are created for each task, as in most papers.

`optim.carry_momentum` keeps the momentum of weights that still exist.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ctvr.methods.base import Decay, Method, ParamGroup
from ctvr.methods.layers.experts import drop_unchosen
from ctvr.orchestrator.errors import ConfigError, ContractViolation
from ctvr.orchestrator.learning.training.custom_optimizers import AdamWHF, BertAdam
from ctvr.orchestrator.settings.optim_config import OPTIMIZERS, OptimConfig


def make_optimizer(
    groups: Iterable[ParamGroup],
    config: OptimConfig,
    method: nn.Module | None = None,
    recompute: Callable[[], None] = lambda: None,
) -> torch.optim.Optimizer:
    """Create an optimizer for a method's groups; each torch group keeps its peak learning rate as `peak`.

    Args:
        groups: `Method.param_groups()`.
        config: selects the optimizer, and the tensors with weight decay in groups that do not define a rule.
        method: owner of the parameters; needed for decay rules that use names. Its own optimizer has priority.
        recompute: see `Method.make_optimizer`.

    Raises:
        ContractViolation: if the method's own optimizer does not have the groups that it received.
    """
    made = _make(groups, config, method, recompute)
    if method is not None:  # experts that a step did not choose are neither moved nor decayed
        made.register_step_pre_hook(lambda *given: drop_unchosen(method))
    return made


def try_optimizer(config: OptimConfig) -> None:
    """Create the optimizer for one small matrix, so that a faulty one is refused before training.

    Raises:
        ConfigError: if an optimizer of another package cannot be created, or lacks the groups that it received.
    """
    make_optimizer([{"name": "trial", "params": [nn.Parameter(torch.zeros(2, 2))], "lr": 1e-4, "decay": "all"}], config)


def _make(
    groups: Iterable[ParamGroup], config: OptimConfig, method: nn.Module | None, recompute: Callable[[], None]
) -> torch.optim.Optimizer:
    names = {} if method is None else {id(parameter): name for name, parameter in method.named_parameters()}
    torch_groups: list[dict[str, Any]] = []
    for group in groups:
        rule = group.get("decay", config.decay_parameters)
        decayed = [p for p in group["params"] if _decays(rule, p, names.get(id(p)))]
        chosen = {id(p) for p in decayed}
        rest = [p for p in group["params"] if id(p) not in chosen]
        for params, decay in ((decayed, config.weight_decay), (rest, 0.0)):
            if params:
                torch_groups.append(
                    {"params": params, "peak": group["lr"] * config.lr_scale, "weight_decay": decay, "lr": 0.0}
                )
    own = method.make_optimizer(torch_groups, recompute) if isinstance(method, Method) else None
    if own is not None:
        if not _keeps_groups(own):
            raise ContractViolation(
                f"make_optimizer() returns {type(own).__name__}: return a torch.optim.Optimizer to whose constructor "
                "`groups` is passed"
            )
        return own
    if (function := OPTIMIZERS.load(config.name)) is not None:
        return _of_another_package(function, torch_groups, config)
    if config.name == "adamw_hf":
        return AdamWHF(torch_groups, config.betas, config.eps)
    if config.name == "bert_adam":
        return BertAdam(torch_groups, config.betas, config.eps, config.grad_clip)
    # On a CPU, the implementations without `fused` compute square roots with MKL, whose results differ between
    # processors
    if config.name == "sgd":
        return torch.optim.SGD(torch_groups, momentum=config.momentum, fused=True)
    return torch.optim.AdamW(torch_groups, betas=config.betas, eps=config.eps, fused=True)


def _keeps_groups(made: object) -> bool:
    """Return whether an optimizer has the groups that it received, with the peak rate of each."""
    return isinstance(made, torch.optim.Optimizer) and all("peak" in group for group in made.param_groups)


def _of_another_package(
    function: Callable[..., Any], groups: list[dict[str, Any]], config: OptimConfig
) -> torch.optim.Optimizer:
    """Call an optimizer of another package with groups, `lr`, and betas, eps and momentum if it has such parameters.

    Raises:
        ConfigError: if it raises an exception, or returns something else than an optimizer with these groups.
    """
    known = OPTIMIZERS.call(config.name, inspect.signature, function).parameters
    given = {name: getattr(config, name) for name in ("betas", "eps", "momentum") if name in known}
    made = OPTIMIZERS.call(config.name, function, groups, lr=max(group["peak"] for group in groups), **given)
    if not _keeps_groups(made):
        raise ConfigError(
            f"{config.name} returns {type(made).__name__}, not a torch.optim.Optimizer with the given groups",
            OPTIMIZERS.setting,
            remedy="Pass the groups to its constructor (docs/metrics.md).",
        )
    return made


def _decays(rule: Decay | None, parameter: nn.Parameter, name: str | None) -> bool:
    if rule is None:
        return False
    if rule in {"matrices", "all", "no_vectors"}:
        return rule == "all" or parameter.ndim > 1 or (rule == "no_vectors" and parameter.ndim == 0)
    if name is None:
        raise ValueError(
            f"optim.decay_parameters: {rule} selects by parameter names. Pass the method that owns the parameters."
        )
    return "bias" not in name and not (rule == "no_bias_or_scale" and "logit_scale" in name)


def lr_factor(step: int, steps: int, steps_per_epoch: int, is_first_task: bool, config: OptimConfig) -> float:
    """Return the factor of every peak learning rate at optimizer step `step` (0-based) of `steps` in one task."""
    return max(config.least, _scheduled(step, steps, steps_per_epoch, is_first_task, config))


def _scheduled(step: int, steps: int, steps_per_epoch: int, is_first_task: bool, config: OptimConfig) -> float:
    warm = 0.0 if config.warmup_tasks == "first" and not is_first_task else config.warmup
    if warm <= 1:
        warm *= steps
    if config.schedule != "cosine_uncorrected_warmup":
        warm = int(warm)
    if config.schedule == "cosine_by_epoch":
        return _by_epoch(step, steps, steps_per_epoch, int(warm))
    if step < warm:
        return min(1.0, (step + (config.warmup_from == "first")) / warm)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "first_epoch":
        return 1.0 if step < steps_per_epoch else config.first_epoch_scale
    if config.schedule == "cosine_uncorrected_warmup":
        warm = 0
    if config.schedule == "cosine_epochs":
        step = max(step - step % steps_per_epoch, int(warm))
    last = steps - (config.schedule == "cosine_to_zero")
    progress = min(1.0, (step + (config.schedule == "cosine_offset1") - warm) / max(1, last - warm))
    cosine = 0.5 * (1 + math.cos(2 * math.pi * config.num_cycles * progress))
    falling = 1 - progress if config.schedule == "linear" else max(0.0, cosine)
    return config.final_share + (1 - config.final_share) * falling


def _by_epoch(step: int, steps: int, steps_per_epoch: int, warm: int) -> float:
    """Return the factor of Co2L's schedule: a linear warm-up to the cosine, then a cosine over 1-based epochs."""

    def at(epoch: float) -> float:
        return 1e-3 + (1 - 1e-3) * 0.5 * (1 + math.cos(math.pi * epoch * steps_per_epoch / steps))

    if step >= warm:
        return at(step // steps_per_epoch + 1)
    return 0.02 + step / warm * (at(warm / steps_per_epoch) - 0.02)


def batch_weights(sizes: Sequence[int], accumulate: int) -> list[float]:
    """Return the weight of each batch's loss in its optimizer step: its share of the pairs of the step's batches.

    A loss is a mean over pairs, so with these weights a step equals the step of one batch with all pairs. This holds
    even if the last group of an epoch has fewer batches, or a batch has fewer pairs. Every worker has the same part of
    each batch, so the weights are valid on all workers.

    Args:
        sizes: pairs in each of the epoch's batches, > 0.
        accumulate: batches per step.
    """
    groups = [sizes[start : start + accumulate] for start in range(0, len(sizes), accumulate)]
    return [size / sum(group) for group in groups for size in group]


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float, final_lr: float = 0.0) -> None:
    """Set every group's learning rate to `factor` times its peak rate, or to `final_lr` if `factor` is 0."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor if factor else final_lr


def freeze_except(module: nn.Module, groups: Iterable[ParamGroup]) -> list[nn.Parameter]:
    """Set `requires_grad` for exactly the parameters in `groups` and freeze all others.

    Returns the trained parameters in order.

    Raises:
        ValueError: if a tensor appears twice or belongs to another module.
    """
    trained: dict[int, nn.Parameter] = {}
    for group in groups:
        for parameter in group["params"]:
            if id(parameter) in trained:
                raise ValueError(f"param_groups(): a tensor of group {group['name']!r} appears twice. Return it once.")
            trained[id(parameter)] = parameter
    own = {id(parameter) for parameter in module.parameters()}
    if strangers := set(trained) - own:
        raise ValueError(f"param_groups(): {len(strangers)} tensors are not parameters of the method. Remove them.")
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    return list(trained.values())
