"""Dual Softmax: similarities weighted by the softmax of the opposite direction (CAMoE, arXiv:2109.04290, eqs. 15-18).

For scaled similarities Z (captions x videos), the direction captions -> videos has the prior Pr:

    Pr = softmax over captions of Z / temperature,   Z' = gain Z * Pr,   softmax over videos of Z'

The direction videos -> captions swaps captions and videos. Equations 17 and 18 of the paper have sim(v_i, s_i) in the
numerator; sim(v_i, s_j) is correct. The paper multiplies cosines by an unpublished `temp`. The authors' repository
(starmemda/CAMoE) divides scaled similarities by 1000. It multiplies the prior by the batch size, so that a uniform
prior has no effect. At temperature 1000 the prior is within a percent of uniform, so the loss almost equals the
cross-entropy without a prior.

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
    """Compute the prior Pr (Q, V), the softmax of `logits` / `temperature` over `dim`.

    Args:
        logits: (Q, V) scaled similarities.
        temperature: divisor of the similarities; infinity gives the uniform prior.
        dim: 0, the softmax over captions, or 1, over videos.
        hidden: (Q, V) bool, pairs whose prior is 0.
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
    """Compute eqs. 15-16: cross-entropies over rows and columns of similarities weighted by the opposite softmax.

    With gain `batch` and a uniform prior, the loss equals `contrastive`. The gradient includes the prior. If B is 0,
    the loss is 0.

    Args:
        logits: (B, B) scaled similarities; pair i is (i, i).
        temperature: temperature of the prior, a divisor as in the authors' code.
        gain: factor of the prior. `batch`: the number of pairs that it covers, as in the authors' code: B, minus
            excluded pairs. `one`: 1, as in the paper.
        reduction: `sum` of the two directions (eq. 13) or their `mean`.
        videos: (B,) video ids. If given, other pairs of the same video are not negatives.
    """
    if len(logits) == 0:
        return logits.sum()
    same = torch.zeros_like(logits, dtype=torch.bool)
    if videos is not None:
        same = (videos[:, None] == videos[None, :]).fill_diagonal_(False)
    pairs = (~same).sum(dim=0) if gain == "batch" else 1  # (B,): B if no pair is excluded
    target = torch.arange(len(logits), device=logits.device)
    rows = []
    for z in (logits, logits.mT):  # `same` is symmetric, so both directions use it
        weighted = z * prior(z, temperature, 0, same) * pairs
        rows.append(F.cross_entropy(weighted.masked_fill(same, float("-inf")), target))
    return sum(rows, start=logits.new_zeros(())) / (1 if reduction == "sum" else 2)


def revise(logits: Tensor, temperature: float = 1.0, dim: int = 0) -> Tensor:
    """Multiply scaled similarities by their prior at test time, for one direction of retrieval.

    Pass the complete matrix, because the prior of a pair is a softmax over all captions (`dim` 0) or all videos (1).
    The result is transductive: the scores of a query depend on the other queries. The prior helps if there is about
    one query per video; with a single query it does not change the ranking. Scores Z Pr increase with Z along `dim`,
    so the ranking along `dim` does not change. Each direction of retrieval therefore needs a separate matrix.

    Args:
        logits: (Q, V) scaled similarities.
        temperature: temperature of the prior; the authors recommend 1 at test time.
        dim: axis of the prior: 0, over captions, for captions -> videos; 1, over videos, for videos -> captions.

    Returns:
        scores (Q, V) float64, because a very small prior underflows in float32. Similarities <= 0 are unchanged,
        because the prior would increase them; they still rank below all positive similarities.
    """
    exact = logits.double()
    return torch.where(exact > 0, exact * prior(exact, temperature, dim), exact)
