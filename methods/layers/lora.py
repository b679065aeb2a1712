"""Low-rank adaptation of a linear layer (LoRA, Hu et al., arXiv:2106.09685, section 4.1).

Shapes: G attention groups, N tokens, D width in, O width out, r rank.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import TokenState


class LoRA(nn.Module):
    """Computes W x + scale * B A x for a frozen W x; fills the seams q, k, v, out, fc, proj of a block.

    A is initialised as torch's linear layer and B is zero, so that a new adapter changes nothing.
    """

    def __init__(self, rank: int, alpha: float, in_width: int, out_width: int, dropout: float = 0.0) -> None:
        """Build an adapter of `rank` whose product B A is multiplied by alpha / rank (alpha = rank: by 1).

        `dropout` is the rate at which A's inputs are dropped in training.

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
        """Reinitialise A at random and set B to zero."""
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B.zero_()

    def delta(self, x: Tensor) -> Tensor:
        """Return the low-rank path of x (G, N, D) alone, (G, N, O)."""
        x = F.dropout(x, self.dropout) if self.dropout and self.training else x
        return self.scale * F.linear(F.linear(x, self.A), self.B)

    def forward(self, x: Tensor, projected: Tensor, state: TokenState | None = None) -> Tensor:
        """Add the low-rank path of x (G, N, D) to `projected` (G, N, O)."""
        return projected + self.delta(x)

    def merged_delta(self) -> Tensor:
        """Return scale * B A, (O, D), which can be added to W in place of the adapter."""
        return self.scale * self.B @ self.A
