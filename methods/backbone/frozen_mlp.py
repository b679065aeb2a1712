"""Memory-saving forward and backward pass of a block's MLP whose weights are frozen.

Results are bit for bit those of the three layers in sequence. The separate layers each allocate an output for every
product with 1.702; this version overwrites these outputs in place.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ctvr.methods.backbone.quick_gelu import STEEPNESS, QuickGELU

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def pass_mlp(mlp: nn.Module, x: Tensor) -> Tensor:
    """Pass tokens x (..., D) through a block's MLP of any kind."""
    if not _is_frozen(mlp) or torch.is_autocast_enabled(x.device.type):
        made: Tensor = mlp(x)
        return made
    wide, narrow = mlp[0], mlp[2]
    made = _Frozen.apply(x, wide.weight, wide.bias, narrow.weight, narrow.bias)
    return made


def _is_frozen(mlp: nn.Module) -> TypeGuard[nn.Sequential]:
    """Report if the MLP is CLIP's, with frozen weights and without hooks."""
    if not isinstance(mlp, nn.Sequential) or [type(part) for part in mlp] != [nn.Linear, QuickGELU, nn.Linear]:
        return False
    if not all(map(_is_untouched, (mlp, *mlp))):
        return False
    return not any(weight.requires_grad for weight in mlp.parameters())


def _is_untouched(part: nn.Module) -> bool:
    """Report if a layer has neither hooks nor a replaced forward."""
    return "forward" not in part.__dict__ and not any(getattr(part, hooks) for hooks in _HOOKS)


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, wide: Tensor, wide_bias: Tensor | None, narrow: Tensor, narrow_bias: Tensor | None
    ) -> Tensor:
        steep = F.linear(x, wide, wide_bias).mul_(STEEPNESS)
        if not ctx.needs_input_grad[0]:
            return F.linear(F.silu(steep, inplace=True).div_(STEEPNESS), narrow, narrow_bias)
        ctx.save_for_backward(steep, wide, narrow)
        return F.linear(F.silu(steep).div_(STEEPNESS), narrow, narrow_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        steep, wide, narrow = ctx.saved_tensors
        own = (gradient @ narrow).div_(STEEPNESS)
        torch.ops.aten.silu_backward.grad_input(own, steep, grad_input=own)
        return own.mul_(STEEPNESS) @ wide, None, None, None, None
