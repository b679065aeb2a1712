"""Simplex equiangular tight frames (ETF): one unit vector per class, with equal and maximal angles between classes.

StructAlign (SIGIR 2026), eqs. 7-8, 10 and 13, based on Papyan et al., arXiv:2008.08186.

Shapes: C classes, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import l2_normalize
from ctvr.methods.settings import SettingError

Frame = Literal["orthonormal", "gaussian"]
Head = Literal["mlp", "frozen_linear"]


def simplex_etf(num_classes: int, dim: int, frame: Frame = "orthonormal", seed: int = 0) -> Tensor:
    """Compute P* of eq. 7, the unit vector of each class: (C, d) float64.

    Args:
        num_classes: C, at least 2; at most `dim`, if `frame` is `orthonormal`.
        dim: d.
        frame: U of eq. 7. `orthonormal`: U^T U = I, so that different rows have the inner product -1 / (C - 1).
            `gaussian`: a random float32 matrix as in the released code; rows are normalized afterwards, and only their
            mean inner product has this value.
        seed: seed of U, which is drawn on the CPU for every training device.

    Raises:
        ValueError: if C is out of range.
    """
    if num_classes < 2:
        raise ValueError(f"a simplex needs at least 2 classes, got {num_classes}.")
    if num_classes > dim and frame == "orthonormal":
        raise SettingError(
            f"{num_classes} classes do not fit into {dim} dimensions with equal angles (StructAlign needs d >= C)",
            f"Use a backbone with a wider joint embedding or <etf_num_classes> <= {dim}.",
        )
    generator = torch.Generator().manual_seed(seed)
    centring = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    centring *= (num_classes / (num_classes - 1)) ** 0.5  # (C, C)
    if frame == "gaussian":
        w = torch.randn(dim, num_classes, generator=generator)
        return F.normalize(w.double() @ centring, dim=0).mT.contiguous()
    u, _ = torch.linalg.qr(torch.randn(dim, num_classes, generator=generator, dtype=torch.float64))
    return (u @ centring).mT.contiguous()


def make_head(dim: int, kind: Head) -> nn.Module:
    """Build g of eq. 10, which maps tokens (..., d) to the space of the prototypes (..., d).

    `mlp` has two layers. `frozen_linear` is a random matrix without bias, as in the released code, and is not trained.
    """
    if kind == "frozen_linear":
        return nn.Linear(dim, dim, bias=False)
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))


def misalignment(text: Tensor, video: Tensor, p: Tensor) -> Tensor:
    """Compute eq. 13, 2 - cos(text, p) - cos(video, p), averaged over pairs: a scalar in [0, 4].

    Args:
        text: (B, d) features of captions.
        video: (B, d) features of videos.
        p: (B, d) unit prototype of the category of each pair.
    """
    return (2 - (l2_normalize(text) * p).sum(dim=-1) - (l2_normalize(video) * p).sum(dim=-1)).mean()


class CategoryPrototypes(nn.Module):
    """Prototypes of a stream's categories: rows of a simplex, assigned in the order in which categories first occur."""

    reference: Tensor  # (C, d) P* of eq. 7; empty before the first task
    learned: nn.Parameter | None  # (C, d) learned prototypes; None if they are fixed
    order: Tensor  # (n,) int64: category order[i] has row i

    def __init__(self, dim: int, frame: Frame, is_learned: bool, num_classes: int | None = None) -> None:
        super().__init__()
        self.dim, self.frame, self.is_learned, self.num_classes = dim, frame, is_learned, num_classes
        self.register_buffer("reference", torch.empty(0))
        self.register_buffer("order", torch.empty(0, dtype=torch.int64))
        self.register_parameter("learned", None)

    def begin(self, name: str, categories: Sequence[int], num_categories: int) -> None:
        """Assign a row of the simplex to each new category of a task.

        Args:
            name: name of the task, for the error message.
            categories: indices of the task's categories.
            num_categories: number of categories of the whole stream.

        Raises:
            ValueError: if the simplex has too few rows.
        """
        device = self.order.device
        if not len(self.reference):
            count = self.num_classes or max(2, num_categories)
            self.reference = simplex_etf(count, self.dim, self.frame).float().to(device)
            if self.is_learned:
                self.learned = nn.Parameter(self.reference.clone())
        new = [category for category in categories if category not in self.order.tolist()]
        self.order = torch.cat([self.order, torch.tensor(new, dtype=torch.int64, device=device)])
        if len(self.order) > len(self.reference):
            raise SettingError(
                f"<etf_num_classes> is {len(self.reference)}, but {name} brings category number {len(self.order)}",
                "Use <etf_num_classes>=none for the stream's number of categories, or a larger value.",
            )

    def all(self) -> Tensor:
        """Return all prototypes P, unit rows (C, d)."""
        return self.reference if self.learned is None else l2_normalize(self.learned)

    def indices(self, categories: Tensor) -> Tensor:
        """Return the index (B,) of the row of P of each category (B,)."""
        return (categories[:, None] == self.order).int().argmax(dim=1)

    def of(self, categories: Tensor) -> Tensor:
        """Return the prototype of each category: (B,) -> (B, d)."""
        return self.all()[self.indices(categories)]

    def penalty(self) -> Tensor:
        """Compute ||P - P*||^2, the squared distance of learned prototypes from the simplex."""
        return (self.all() - self.reference).square().sum()
