"""Simplex equiangular tight frames: directions of classes that are as far apart as can be.

StructAlign (SIGIR 2026), eqs. 7-8; after Papyan et al., arXiv:2008.08186.

Shapes: C classes, d joint embedding.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Frame = Literal["orthonormal", "gaussian"]


def simplex_etf(num_classes: int, dim: int, frame: Frame = "orthonormal", seed: int = 0) -> Tensor:
    """P* of eq. 7, one unit row for each class: (C, d) float64.

    Args:
        num_classes: C, at least 2 and at most `dim`.
        dim: d.
        frame: what U of eq. 7 is. `orthonormal`: U^T U = I, so that different rows have the inner
            product -1 / (C - 1) exactly. `gaussian`: the released code's random matrix, whose rows
            are normalised afterwards and have that inner product on average only; drawn in float32.
        seed: of U, drawn on the CPU whatever the device of training.

    Raises:
        ValueError: if C is out of range.
    """
    if num_classes < 2:
        raise ValueError(f"a simplex of classes needs at least 2 of them, got {num_classes}.")
    if num_classes > dim and frame == "orthonormal":
        raise ValueError(
            f"{num_classes} classes do not fit into {dim} dimensions with equal angles (StructAlign needs d >= C). "
            f"Use a backbone with a wider joint embedding or etf_num_classes <= {dim}."
        )
    generator = torch.Generator().manual_seed(seed)
    centring = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    centring *= (num_classes / (num_classes - 1)) ** 0.5  # (C, C)
    if frame == "gaussian":
        w = torch.randn(dim, num_classes, generator=generator)
        return F.normalize(w.double() @ centring, dim=0).mT.contiguous()
    u, _ = torch.linalg.qr(torch.randn(dim, num_classes, generator=generator, dtype=torch.float64))
    return (u @ centring).mT.contiguous()
