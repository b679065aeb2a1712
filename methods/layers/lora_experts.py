"""Mixture of LoRA experts, each with separate A and B (StructAlign, SIGIR 2026, eqs. 2-3).

In contrast, the experts of FrameFusionMoE share one A. StructAlign's paper does not specify which token the router
reads. Its gates G have one row per caption (B x I). So here the router reads the end-of-text token, as in
FrameFusionMoE.

Shapes: B captions, L tokens, D input width, O output width, E experts (I in the paper), r rank, P adapters of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ctvr.methods.layers.adapter_groups import AdapterGroup, RouterStack
from ctvr.methods.layers.expert_usage import UsageCounter
from ctvr.methods.layers.experts import Router, check_top_k
from ctvr.methods.layers.precision import in_autocast


class LoRAExperts(UsageCounter):
    """Weights of the experts and the router of one projection of a text block; `LoRAExpertGroup` applies them."""

    def __init__(
        self, num_experts: int, top_k: int, rank: int, alpha: float, in_width: int, out_width: int, dropout: float = 0.0
    ) -> None:
        """Build `num_experts` experts of rank `rank` with factor alpha / rank; each caption uses `top_k` experts.

        Raises:
            ValueError: unless 1 <= top_k <= num_experts and rank >= 1.
        """
        super().__init__()
        check_top_k(top_k, num_experts)
        if rank < 1:
            raise ValueError(f"the rank of an expert must be >= 1, got {rank}.")
        self.scale, self.dropout = alpha / rank, dropout
        self.A = nn.Parameter(torch.empty(num_experts, rank, in_width))  # (E, r, D)
        self.B = nn.Parameter(torch.zeros(num_experts, out_width, rank))  # (E, O, r)
        self.router = Router(in_width, num_experts, top_k, is_noisy=False)  # R of eq. 2
        bound = 1 / math.sqrt(in_width)  # initialization of torch.nn.Linear
        nn.init.uniform_(self.A, -bound, bound)


class LoRAExpertGroup(AdapterGroup):
    """Computes eqs. 2-3, scale * sum_i G_i B_i A_i x, for the experts of several layers.

    The output of every expert is computed, then weighted. An expert outside the top k therefore has a gradient of
    zeros, not None. So all workers of a distributed run have gradients for the same parameters.
    """

    def __init__(self, layers: Sequence[Sequence[LoRAExperts]]) -> None:
        self.experts = layers
        first, flat = layers[0][0], [each for row in layers for each in row]
        routers = RouterStack([[each.router for each in row] for row in layers], None)
        super().__init__(layers, routers, len(first.A), first.dropout)
        shape = (len(layers), self.places)
        down, up = (in_autocast(torch.stack(weights)) for weights in zip(*((each.A, each.B) for each in flat)))
        self.down = down.flatten(1, 2).unflatten(0, shape).unbind()  # (P, E * r, D) for each layer
        up = _ScaledTranspose.apply(up, first.scale / (1 - self.dropout))
        self.up = up.flatten(2).unflatten(0, shape).unbind()  # (P, O, E * r)

    def delta(self, layer: int, x: Tensor, gates: Tensor) -> Tensor:
        down = torch.bmm(x.flatten(1, 2), self.down[layer].mT)  # (P, B * L, E * r)
        weight = gates.transpose(0, 1).to(down.dtype)  # (P, B, E)
        weighted = down.unflatten(1, x.shape[1:3]).unflatten(-1, (self.num_experts, -1)) * weight[:, :, None, :, None]
        return torch.bmm(weighted.flatten(3).flatten(1, 2), self.up[layer].mT).unflatten(1, x.shape[1:3])


class _ScaledTranspose(torch.autograd.Function):
    """Autograd function factor * x.transpose(1, 2), whose output and gradient are contiguous, to avoid a later copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return _scaled_transpose(x, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scaled_transpose(gradient, ctx.factor), None


def _scaled_transpose(x: Tensor, factor: float) -> Tensor:
    turned = x.transpose(1, 2)
    return torch.mul(turned, factor, out=x.new_empty(turned.shape))
