"""Dual Softmax: similarities weighted by the softmax of the opposite direction (CAMoE, arXiv:2109.04290, eqs. 15-18).

For scaled similarities Z (captions x videos), captions -> videos:

    Pr = softmax over captions of Z / temperature,   Z' = gain Z * Pr,   softmax over videos of Z'

and the same with swapped roles for videos -> captions. Equations 17 and 18 print sim(v_i, s_i) in the numerator,
which must be sim(v_i, s_j). The paper multiplies cosines by an unpublished `temp`; the authors' repository
(starmemda/CAMoE) divides scaled similarities by 1000 and multiplies the prior by the batch size, so that a
flat prior changes nothing. At 1000 it is flat to within a percent: the loss almost equals the cross-entropy.

Shapes: B pairs, Q captions (queries), V videos.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Gain = Literal["batch", "one"]
Reduction = Literal["mean", "sum"]


def prior(logits: Tensor, temperature: float, dim: int, hidden: Tensor | None = None) -> Tensor:
    """Compute Pr of scaled similarities (Q, V): sums to 1 over `dim`, 0 for the captions and 1 for the videos.

    An infinite temperature gives the uniform prior. Pairs marked in `hidden` (Q, V) have a share of 0.
    """
    smooth = logits / temperature
    return (smooth if hidden is None else smooth.masked_fill(hidden, float("-inf"))).softmax(dim=dim)


def dual_softmax(
    logits: Tensor,
    temperature: float = 1000.0,
    gain: Gain = "batch",
    reduction: Reduction = "sum",
    videos: Tensor | None = None,
) -> Tensor:
    """Compute eqs. 15-16: cross-entropy over rows and over columns, each revised by the other direction's softmax.

    With gain `batch` and a uniform prior it is `losses.contrastive`; the gradient flows through the prior.

    Args:
        logits: (B, B) similarities times the scale; pair i is (i, i). 0 if B is 0.
        temperature: temperature of the prior; a divisor, as in the authors' code.
        gain: `batch` multiplies the prior by B, as the code does (by the number of remaining pairs, where some are
            not negatives); `one` does not, as the paper prints.
        reduction: `sum` of the two directions (eq. 13) or their `mean`.
        videos: (B,) video numbers. If given, other pairs of the same video are not negatives.
    """
    if len(logits) == 0:
        return logits.sum()
    same = torch.zeros_like(logits, dtype=torch.bool)
    if videos is not None:
        same = (videos[:, None] == videos[None, :]).fill_diagonal_(False)
    pairs = (~same).sum(dim=0) if gain == "batch" else 1  # (B,): B if no pair is excluded
    target = torch.arange(len(logits), device=logits.device)
    rows = []
    for z in (logits, logits.mT):  # `same` is symmetric, so both directions read alike
        weighted = z * prior(z, temperature, 0, same) * pairs
        rows.append(F.cross_entropy(weighted.masked_fill(same, float("-inf")), target))
    return sum(rows, start=logits.new_zeros(())) / (1 if reduction == "sum" else 2)


def revise(logits: Tensor, temperature: float = 1.0, dim: int = 0) -> Tensor:
    """Revise the similarities of one direction over complete matrices: every query affects every other.

    Captions -> videos takes the prior over the captions (dim 0), videos -> captions that over the videos (dim 1).
    It needs the whole matrix, since the prior of a pair is a softmax over its whole row or column.
    Transductive, and made for about one query per video. With a single query nothing changes: Z Pr grows with Z
    along `dim`, so the ranking along it stays the same, and each direction needs its own matrix.

    Args:
        logits: (Q, V) similarities times the scale.
        temperature: temperature of the prior; the authors recommend 1 here.
        dim: axis of the prior: 0, the captions, or 1, the videos.

    Returns:
        (Q, V) float64, since a very small prior underflows in float32. Similarities that are not positive are
        unchanged: the factor would raise them, and they rank below all positive ones anyway.
    """
    exact = logits.double()
    return torch.where(exact > 0, exact * prior(exact, temperature, dim), exact)
