"""Accuracy of a backbone by the nearest neighbours of its features, as divyam3897/UCL@cfaa81d measures it.

A test image is compared with the training images of its own task. The k most similar of them vote for their class
with exp(cosine / 0.1); of equal votes the lower label wins (Wu et al., arXiv:1805.01978, section 3.4).

Shapes: Q test images, N training images of the task, C features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.settings import SettingError

TEMPERATURE = 0.1


def votes(test: Tensor, bank: Tensor, labels: Tensor, k: int, classes: int) -> Tensor:
    """Sum the votes for each class: (Q, classes).

    Args:
        test: (Q, C), not necessarily normalised.
        bank: (N, C).
        labels: (N,) int64 in [0, classes).
        k: number of neighbours that vote, 1 to N.
        classes: number of classes of the task.

    Raises:
        ValueError: if k is not in 1 to N.
    """
    if not 1 <= k <= len(bank):
        raise SettingError(
            f"<k> counts neighbours among {len(bank)} training images, got {k}", f"Use 1 to {len(bank)}."
        )
    likeness = F.normalize(test.float(), dim=-1) @ F.normalize(bank.float(), dim=-1).mT
    nearest, rows = likeness.topk(k, dim=-1)  # (Q, k)
    weights = (nearest / TEMPERATURE).exp()
    return weights.new_zeros(len(test), classes).scatter_add_(1, labels[rows], weights)


def accuracy(votes: Tensor, labels: Tensor) -> float:
    """Return the percentage of test images whose own class has the most votes; labels (Q,)."""
    return 100.0 * (votes.argmax(dim=1) == labels).double().mean().item()


def released_k(tasks: int, asked: int = 200) -> int:
    """Return the release's k after `tasks` tasks: its cap is the number of tasks, not the number of images."""
    return min(asked, tasks)


def mean_accuracy(table: Sequence[Sequence[float]]) -> float:
    """Average the accuracies after the last row's task; row t holds the accuracy of tasks 0..t after task t."""
    return sum(table[-1]) / len(table[-1])


def forgetting(table: Sequence[Sequence[float]], of_best: bool = False) -> float:
    """Return the mean loss of accuracy over former tasks; NaN after the first task.

    Args:
        table: row t holds the accuracy of tasks 0..t after task t.
        of_best: relative to the best former value, as in the text of LUMP (arXiv:2110.06976, section 5.1); else to the
            value when the task was learned, as in its release and BMU-MoCo's tables.
    """
    earlier = len(table) - 1
    if not earlier:
        return float("nan")
    before = [max(row[i] for row in table[i:-1]) if of_best else table[i][i] for i in range(earlier)]
    return sum(value - table[-1][i] for i, value in enumerate(before)) / earlier
