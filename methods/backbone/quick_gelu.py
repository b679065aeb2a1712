"""QuickGELU, the activation function of OpenAI's CLIP."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEEPNESS = 1.702


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), computed as silu(1.702 x) / 1.702; the graph stores one tensor, 1.702 x.

    Tensors of an MLP's hidden width are the largest of a training step. Allocating one takes longer than computing it,
    because the system maps its pages one by one. Here the backward pass allocates one, with plain autograd three.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            made: Tensor = _WithGradient.apply(x)
            return made
        return F.silu(STEEPNESS * x, inplace=True).div_(STEEPNESS)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = STEEPNESS * x
        ctx.save_for_backward(y)
        return F.silu(y).div_(STEEPNESS)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        own = gradient / STEEPNESS
        torch.ops.aten.silu_backward.grad_input(own, y, grad_input=own)
        return own.mul_(STEEPNESS)
