"""Attention whose keys have a factor in [0, 1], with a gradient even at 0, for searches for compression rates.

DiffRate (Chen et al., arXiv:2305.17997) trains the number of kept tokens. Its released code computes all tokens. With
logits l and a factor P_j of each key, its attention is

    A_ij = (e_ij Q_ij + eps / N) / (sum_j e_ij Q_ij + eps),   e_ij = exp(l_ij - max_j l_ij),   Q_ij = P_j, Q_ii = 1

At P_j = 0 its gradient is dA / dP_j = e_ij / sum; a bias log P would not have one. This form stores the matrix of
probabilities, which the fused kernel never creates. Use it only in a search, at the hook point `mix` of `BlockSeams`.

Shapes: G groups, H heads, N tokens, c width of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = 1e-6


def masked_probabilities(logits: Tensor, kept: Tensor, eps: float = EPS) -> Tensor:
    """Compute A (G, H, N, N), whose rows sum to 1.

    Args:
        logits: (G, H, N, N) scaled products of queries and keys, plus the bias for sizes.
        kept: P (G, N), the factor of each key; a token always attends to itself with factor 1.
        eps: small constant, so that the division by a sum near 0 is finite.
    """
    tokens = logits.shape[-1]
    e = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    own = torch.eye(tokens, dtype=logits.dtype, device=logits.device)
    policy = kept[:, None, None].to(logits.dtype)  # (G, 1, 1, N)
    weighed = e * (policy * (1 - own) + own)
    return (weighed + eps / tokens) / (weighed.sum(dim=-1, keepdim=True) + eps)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, kept: Tensor, bias: Tensor | None = None, eps: float = EPS
) -> tuple[Tensor, Tensor]:
    """Compute masked attention of q, k and v (G, H, N, c).

    Args:
        kept: see `masked_probabilities`.
        bias: added to the logits, for example the logarithms of sizes.
        eps: see `masked_probabilities`.

    Returns:
        the output (G, H, N, c), and the attention (G, N) of the class token, averaged over heads.
    """
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    weights = masked_probabilities(logits if bias is None else logits + bias, kept, eps)
    return weights @ v, weights[:, :, 0].mean(dim=1)
