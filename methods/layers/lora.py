"""Low-rank adaptation of a linear layer (LoRA, Hu et al., arXiv:2106.09685, section 4.1).

Shapes: G attention groups, N tokens, D input width, O output width, r rank.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import TokenState


class LoRA(nn.Module):
    """Adapter that adds scale * B A x to a frozen projection W x, at hook point q, k, v, out, fc or proj of a block.

    A is initialized like `torch.nn.Linear`, and B with zeros, so that the output of a new adapter is zero.
    """

    def __init__(self, rank: int, alpha: float, in_width: int, out_width: int, dropout: float = 0.0) -> None:
        """Build an adapter of rank `rank` with scale = alpha / rank.

        `dropout` is the probability of dropping an input of A in training.

        Raises:
            ValueError: if `rank` is below 1.
        """
        super().__init__()
        if rank < 1:
            raise ValueError(f"the rank of LoRA must be >= 1, got {rank}.")
        self.scale, self.dropout = alpha / rank, dropout
        self.A = nn.Parameter(torch.empty(rank, in_width))  # (r, D)
        self.B = nn.Parameter(torch.zeros(out_width, rank))  # (O, r)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Initialize A at random, and set B to zero."""
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B.zero_()

    def delta(self, x: Tensor) -> Tensor:
        """Return the adapter's output scale * B A x, without W x: (G, N, D) -> (G, N, O)."""
        x = F.dropout(x, self.dropout) if self.dropout and self.training else x
        return self.scale * F.linear(F.linear(x, self.A), self.B)

    def forward(self, x: Tensor, projected: Tensor, state: TokenState | None = None) -> Tensor:
        """Return `projected` (G, N, O) + scale * B A x for x (G, N, D); the sum is fused with the product by B."""
        x = F.dropout(x, self.dropout) if self.dropout and self.training else x
        low = F.linear(x, self.A).flatten(0, -2)
        return torch.addmm(projected.flatten(0, -2), low, self.B.mT, alpha=self.scale).view(projected.shape)

    def merged_delta(self) -> Tensor:
        """Return scale * B A (O, D); adding it to W is equivalent to the adapter."""
        return self.scale * self.B @ self.A
