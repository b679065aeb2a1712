"""Accuracy of a k-nearest-neighbors classifier on the features of a backbone, as in divyam3897/UCL@cfaa81d.

A test image is compared with the training images of its task. The k most similar training images vote for their class
with weight exp(cosine / 0.1); if votes are equal, the lower label wins (Wu et al., arXiv:1805.01978, section 3.4).

Shapes: Q test images, N training images of the task, C features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.settings import SettingError

TEMPERATURE = 0.1


def votes(test: Tensor, bank: Tensor, labels: Tensor, k: int, classes: int) -> Tensor:
    """Return the summed weights of the votes for each class, (Q, classes).

    Args:
        test: (Q, C) features of test images, not necessarily normalized.
        bank: (N, C) features of training images, not necessarily normalized.
        labels: (N,) int64 labels of training images in [0, classes).
        k: number of neighbors that vote, 1 to N.
        classes: number of classes of the task.

    Raises:
        ValueError: if k is not in 1 to N.
    """
    if not 1 <= k <= len(bank):
        raise SettingError(f"<k> counts neighbors among {len(bank)} training images, got {k}", f"Use 1 to {len(bank)}.")
    likeness = F.normalize(test.float(), dim=-1) @ F.normalize(bank.float(), dim=-1).mT
    nearest, rows = likeness.topk(k, dim=-1)  # (Q, k)
    weights = (nearest / TEMPERATURE).exp()
    return weights.new_zeros(len(test), classes).scatter_add_(1, labels[rows], weights)


def accuracy(votes: Tensor, labels: Tensor) -> float:
    """Return the percentage of test images whose class has the most votes.

    Args:
        votes: (Q, classes), see `votes`.
        labels: (Q,) int64 labels of test images.
    """
    return 100.0 * (votes.argmax(dim=1) == labels).double().mean().item()


def released_k(tasks: int, asked: int = 200) -> int:
    """Return k as in the released code, which caps it at the number of `tasks` so far, not at the number of images."""
    return min(asked, tasks)


def mean_accuracy(table: Sequence[Sequence[float]]) -> float:
    """Return the mean accuracy over all tasks after the last task, in percent.

    Row t of `table` has the accuracies of tasks 0 to t, in percent, after task t.
    """
    return sum(table[-1]) / len(table[-1])


def forgetting(table: Sequence[Sequence[float]], of_best: bool = False) -> float:
    """Return the mean decrease in accuracy of previous tasks, in percentage points; NaN if there is only one task.

    Args:
        table: row t has the accuracies, in percent, of tasks 0 to t after task t.
        of_best: whether to compare with the best earlier accuracy, as in the text of LUMP (arXiv:2110.06976, section
            5.1); otherwise with the accuracy after the task was learned, as in the code of LUMP and BMU-MoCo's tables.
    """
    earlier = len(table) - 1
    if not earlier:
        return float("nan")
    before = [max(row[i] for row in table[i:-1]) if of_best else table[i][i] for i in range(earlier)]
    return sum(value - table[-1][i] for i, value in enumerate(before)) / earlier
