"""The two losses of UMT: contrastive (VTC), and matching of pairs by the fusion layers with hard negatives (VTM).

Li et al., arXiv:2303.16058, as in the authors' code (based on ALBEF, arXiv:2107.07651). The similarity s of a caption
and a video is the mean cosine of the caption and the video's frames; temp is the temperature.

- VTC: soft cross-entropies of s / temp, in which captions of one video share the target probability.
- VTM: each caption gets one negative video, and each video one negative caption, drawn from the worker's batch with
  probability softmax(s / temp). The loss is the cross-entropy of the head's two logits over B pairs and 2 B negatives;
  class 1 is a match.

Shapes: B pairs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shared_contrastive(scores: Tensor, videos: Tensor) -> Tensor:
    """Compute VTC, the mean of the cross-entropies of both directions; pairs of one video share the target probability.

    Args:
        scores: (B, B) similarities, captions x videos, divided by the temperature.
        videos: (B,) video ids.
    """
    same = (videos[:, None] == videos[None, :]).to(scores.dtype)
    target = same / same.sum(dim=1, keepdim=True)
    both = (target * scores.log_softmax(dim=1)).sum(dim=1), (target * scores.mT.log_softmax(dim=1)).sum(dim=1)
    return -(both[0].mean() + both[1].mean()) / 2


@torch.no_grad()
def negative_weights(scores: Tensor, videos: Tensor, hard: bool = True) -> Tensor:
    """Return weights (B, B) with which each row samples its negative column; pairs of one video have weight 0.

    The weights of a row need not sum to 1.

    Args:
        scores: (B, B) similarities divided by the temperature, captions x videos; transpose them to sample captions.
        videos: (B,) video ids of rows and columns.
        hard: whether weights are the softmax over the row; otherwise they are equal.

    Raises:
        ValueError: on a CPU, if a row has no negative, for example because all pairs are of one video.
    """
    same = videos[:, None] == videos[None, :]
    if same.device.type == "cpu" and bool(same.all(dim=1).any()):  # on a GPU this check would wait for the GPU
        raise ValueError("a batch has only one video, but matching needs two. Use a larger data.batch_size.")
    weights = scores.float().softmax(dim=1) if hard else torch.ones_like(scores, dtype=torch.float32)
    weights = weights.clamp_min(torch.finfo(torch.float32).tiny)  # so that a row can be drawn from if softmax gives 0
    return weights.masked_fill(same, 0.0)


def matching(logits: Tensor) -> Tensor:
    """Compute VTM, the cross-entropy of logits (3B, 2): B pairs (class 1), then 2 B negatives (class 0)."""
    pairs = len(logits) // 3
    target = (torch.arange(len(logits), device=logits.device) < pairs).long()
    return F.cross_entropy(logits, target)
