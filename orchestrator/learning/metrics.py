"""Retrieval and forgetting metrics: pure functions of scores and of R@1 matrices.

Protocol: CTVR (arXiv:2503.10111, section 3) and CVLM (BMU-MoCo, section 4). Shapes: Q queries, V videos,
T tasks. All recalls and forgetting values are in percent (points).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Matrix = Sequence[Sequence[float]]  # lower-triangular: row t holds R@1 of tasks 0..t after task t


def ranks(scores: Tensor, target: Tensor) -> Tensor:
    """Rank of each query's own video, 1 = best: 1 + #better + #equal / 2, so ties are neither won nor lost.

    Args:
        scores: (Q, V). NaN counts as the worst score, so a diverged model ranks at chance.
        target: (Q,) int64 column of each query's own video.

    Returns:
        (Q,) float64.
    """
    scores = torch.nan_to_num(scores, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    own = scores.gather(1, target[:, None])  # (Q, 1)
    better = (scores > own).sum(dim=1)
    equal = (scores == own).sum(dim=1) - 1  # the video itself is no tie
    return 1 + better.double() + equal.double() / 2


def video_ranks(scores: Tensor, target: Tensor) -> Tensor:
    """Rank of each video's own captions among the videos' (video -> text), as CLIP4Clip, X-Pool and CTVR count it.

    The best caption of each video speaks for it first; then a video's own captions are ranked among all videos'.

    Takes scores (Q, V) and target (Q,) as `ranks` does; returns (V',) float64 for the videos that have a caption, in
    column order. Ties count as in `ranks` (the released code ranks the own ones first).
    """
    scores = torch.nan_to_num(scores, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    captioned, group = target.unique(return_inverse=True)  # (V',), (Q,)
    best = scores.new_full((len(captioned), len(captioned)), -math.inf)  # captions' videos x searching videos
    best.scatter_reduce_(0, group[:, None].expand(-1, len(captioned)), scores[:, captioned], "amax")
    return ranks(best.mT, torch.arange(len(captioned), device=scores.device))


def caption_ranks(scores: Tensor, target: Tensor) -> Tensor:
    """Rank of each video's best own caption among all captions of other videos; arguments as of `video_ranks`.

    Stricter where a video has several captions, and the same where each has one.
    """
    scores = torch.nan_to_num(scores, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    own = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    own[torch.arange(len(scores), device=scores.device), target] = True
    captioned = own.any(dim=0)
    best = scores.masked_fill(~own, -math.inf).amax(dim=0)  # (V,)
    others = scores.masked_fill(own, math.nan)  # NaN compares false: own captions never count
    better = (others > best).sum(dim=0)
    equal = (others == best).sum(dim=0)
    return (1 + better.double() + equal.double() / 2)[captioned]


def recall(rank: Tensor, k: int) -> float:
    """R@k: percent of queries whose own video is among the first k; NaN without queries."""
    return 100.0 * (rank <= k).double().mean().item() if len(rank) else math.nan


def summary(rank: Tensor) -> dict[str, float]:
    """r1, r5, r10 in percent and rsum, their sum; medr and meanr, the median and mean rank."""
    if not len(rank):
        return dict.fromkeys(("r1", "r5", "r10", "rsum", "medr", "meanr"), math.nan)
    recalls = {f"r{k}": recall(rank, k) for k in (1, 5, 10)}
    return {
        **recalls,
        "rsum": sum(recalls.values()),
        "medr": rank.double().quantile(0.5).item(),  # the mean of the two middle ranks where Q is even
        "meanr": rank.double().mean().item(),
    }


def backward_forgetting(matrix: Matrix) -> float:
    """BWF_t = 1/(t-1) sum_{i<t} (R_ii - R_ti) after the last row's task; 0 after the first task.

    CTVR, section 3.3. Lower is better, negative is gain.
    """
    last = matrix[-1]
    earlier = len(matrix) - 1
    return sum(matrix[i][i] - last[i] for i in range(earlier)) / earlier if earlier else 0.0


def forgetting_rate(matrix: Matrix) -> float:
    """Overall FR = sum_t (A_tt - A_nt): a sum, not a mean (BMU-MoCo, section 4.1, its typo mended)."""
    last = matrix[-1]
    return float(sum(matrix[i][i] - last[i] for i in range(len(matrix))))


def harmonic_mean(matrix: Matrix) -> float:
    """HM of the mean R@1 when each task was current and the mean final R@1 (BMU-MoCo, section 4.1)."""
    current = sum(matrix[i][i] for i in range(len(matrix))) / len(matrix)
    final = sum(matrix[-1]) / len(matrix)
    return 2 * current * final / (current + final) if current + final else 0.0


def twin_accuracy(scores: Tensor, target: Tensor, twin: Tensor) -> float:
    """Percent of queries that score their video above its time-reversed twin; ties count one half.

    Args:
        scores: (Q, V); target: (Q,) own column; twin: (Q,) column of the twin, -1 where there is none.

    Returns:
        50 is what a model without a sense of time gets; NaN without twins.
    """
    has = twin >= 0
    if not bool(has.any()):
        return math.nan
    rows = scores[has]
    difference = rows.gather(1, target[has, None]) - rows.gather(1, twin[has, None])
    return 100.0 * ((difference > 0).double() + (difference == 0).double() / 2).mean().item()
