"""A mixture of LoRA experts, each with its own A and B (StructAlign, SIGIR 2026, eqs. 2-3).

FrameFusionMoE's experts share one A; these do not. The paper does not specify the token that the router
reads. As G is one row per caption (B x I), it reads the end-of-text token, as FrameFusionMoE's does.

Shapes: B captions, L tokens, D width in, O width out, E experts (the paper's I), r rank.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import TokenState
from ctvr.methods.layers.expert_usage import UsageCounter
from ctvr.methods.layers.experts import Router, check_top_k


class LoRAExperts(UsageCounter):
    """Computes W x + scale * sum_i G_i B_i A_i x; fills the seams q, k, v, out of a text block.

    All experts are computed and weighted, so that an expert outside the top k has a gradient of zero
    (not none) and every worker of a distributed run sees the same set of gradients.
    """

    def __init__(
        self, num_experts: int, top_k: int, rank: int, alpha: float, in_width: int, out_width: int, dropout: float = 0.0
    ) -> None:
        """Build `num_experts` experts of `rank`, of which each caption uses `top_k`.

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
        bound = 1 / math.sqrt(in_width)  # as in torch's linear layer
        nn.init.uniform_(self.A, -bound, bound)

    def gates(self, x: Tensor, state: TokenState) -> Tensor:
        """Compute eq. 2: G (B, E) of tokens x (B, L, D): `top_k` non-zeros in each row, which sum to 1."""
        assert state.eot is not None, "experts read the end-of-text token: use them in a text tower"
        return self.router(x[torch.arange(len(x), device=x.device), state.eot])

    def forward(self, x: Tensor, projected: Tensor, state: TokenState) -> Tensor:
        """Compute eq. 3: add the experts' weighted sum for x (B, L, D) to `projected` (B, L, O)."""
        gates = self.gates(x, state)
        self.count(gates)
        gates = gates.to(x.dtype)
        x = F.dropout(x, self.dropout, self.training)
        down = F.linear(x, self.A.flatten(0, 1)).unflatten(-1, self.A.shape[:2])  # (B, L, E, r)
        weighted = (down * gates[:, None, :, None]).flatten(2)  # (B, L, E * r)
        return projected + self.scale * F.linear(weighted, self.B.transpose(0, 1).flatten(1))
