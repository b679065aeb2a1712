"""Losses on a matrix of scaled similarities, captions x videos, whose diagonal contains the pairs.

Shapes: B pairs, R reference videos, C classes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive(logits: Tensor, reduction: Literal["mean", "sum"] = "mean", videos: Tensor | None = None) -> Tensor:
    """Compute symmetric InfoNCE, captions -> videos and videos -> captions (CLIP, arXiv:2103.00020, fig. 3).

    Args:
        logits: (B, B) similarities divided by the temperature; pair i is (i, i).
        reduction: `mean` averages the losses of the two directions, as in the papers; `sum` adds them, as in the
            released CTVR code.
        videos: (B,) video ids. If given, other pairs of the same video are not negatives.
    """
    if videos is not None:
        same = videos[:, None] == videos[None, :]
        same.fill_diagonal_(False)
        logits = logits.masked_fill(same, float("-inf"))
    target = torch.arange(len(logits), device=logits.device)
    both = F.cross_entropy(logits, target) + F.cross_entropy(logits.mT, target)
    return both if reduction == "sum" else both / 2


def cross_task(logits: Tensor, references: Tensor) -> Tensor:
    """Compute InfoNCE captions -> videos with the stored videos of previous tasks as additional negatives.

    FrameFusionMoE (arXiv:2503.10111), eq. 8. Without references it equals the direction captions -> videos of
    `contrastive`.

    Args:
        logits: (B, B) scaled similarities of the captions and videos of a batch; pair i is (i, i).
        references: (B, R) scaled similarities of the captions and the stored videos.
    """
    target = torch.arange(len(logits), device=logits.device)
    return F.cross_entropy(torch.cat([logits, references], dim=1), target)


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Compute T^2 KL(teacher || student), averaged over rows (Hinton et al., arXiv:1503.02531).

    Args:
        student: (B, C) logits.
        teacher: (B, C) logits.
        temperature: T.
    """
    target = F.softmax(teacher.float() / temperature, dim=-1)
    logs = F.log_softmax(student.float() / temperature, dim=-1)
    return F.kl_div(logs, target, reduction="batchmean") * temperature**2
