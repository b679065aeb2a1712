"""UMT's two losses: contrastive (VTC), and matching of pairs by the fusion layers with hard negatives (VTM).

Li et al., arXiv:2303.16058, as its authors' code computes them (after ALBEF, arXiv:2107.07651):

    s = mean over frames of cosines;  VTC: soft cross-entropies of s / temp, captions of one video share its mass
    VTM: for each caption one negative video and for each video one negative caption, drawn by softmax(s / temp) of the
    worker's own batch; cross-entropy of the head's two logits over B pairs and 2 B negatives, 1 is a match

Shapes: B pairs, S (B, B) captions x videos, already divided by temp.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shared_contrastive(scores: Tensor, videos: Tensor) -> Tensor:
    """Compute VTC: mean of both directions' cross-entropies; captions of one video share the target mass.

    Args:
        scores: (B, B) similarities divided by the temperature.
        videos: (B,) equal numbers are the same video.
    """
    same = (videos[:, None] == videos[None, :]).to(scores.dtype)
    target = same / same.sum(dim=1, keepdim=True)
    both = (target * scores.log_softmax(dim=1)).sum(dim=1), (target * scores.mT.log_softmax(dim=1)).sum(dim=1)
    return -(both[0].mean() + both[1].mean()) / 2


@torch.no_grad()
def negative_weights(scores: Tensor, videos: Tensor, hard: bool = True) -> Tensor:
    """Weight each column as a negative of a row: (B, B), 0 where both are of one video, not normalised.

    Args:
        scores: (B, B); transposed, they are those of captions for videos.
        videos: (B,) of rows and columns.
        hard: weight by the softmax over the row; False: equal weights.

    Raises:
        ValueError: if a row has no negative, as in a batch of one video.
    """
    same = videos[:, None] == videos[None, :]
    if same.device.type == "cpu" and bool(same.all(dim=1).any()):  # on a GPU this check would synchronise
        raise ValueError("pairs are matched against other videos of a batch, and this one has a single video.")
    weights = scores.float().softmax(dim=1) if hard else torch.ones_like(scores, dtype=torch.float32)
    weights = weights.clamp_min(torch.finfo(torch.float32).tiny)  # a row whose own pair has all the mass can still draw
    return weights.masked_fill(same, 0.0)


def matching(logits: Tensor) -> Tensor:
    """Compute VTM: cross-entropy of the logits (3B, 2) of B pairs and then 2 B negatives; logit 1 is a match."""
    pairs = len(logits) // 3
    target = (torch.arange(len(logits), device=logits.device) < pairs).long()
    return F.cross_entropy(logits, target)
