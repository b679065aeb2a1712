"""Maps between the feature spaces of two models, fitted to features of the same items.

Rows of X (n, d) are features of the new model, and rows of Y (n, d') are features of the old model. A map takes X to Y.
Closed forms are computed in float64 on the CPU; gradient descent runs on the device of the features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Weights = dict[str, Tensor]
HELD_OUT = 10  # every HELD_OUT-th pair is held out, to select the step whose weights are returned
CHECK_EVERY = 10  # steps between evaluations on the held-out pairs


def procrustes(x: Tensor, y: Tensor, ridge: float = 0.0) -> Tensor:
    """Return the orthogonal R (d, d), rotation or reflection, that minimizes |X R - Y|^2 - 2 ridge tr R.

    If the widths differ, R (d, d') has orthonormal rows or columns.

    With X'Y + ridge I = U S V', R is U V' (Schoenemann, 1966). `ridge` > 0 pulls R towards the identity in directions
    that the pairs do not determine, for example if n < d.
    """
    cross = (x.double().mT @ y.double()).cpu() + ridge * torch.eye(x.shape[-1], y.shape[-1], dtype=torch.float64)
    u, _, vh = svd(cross)
    return (u @ vh).to(x.device)


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U (m, k), S (k,), V' (k, n), k = min(m, n), of a matrix (m, n).

    torch uses LAPACK's gesdd, which fails to converge on some matrices of low rank. For these, gesvd is used.
    """
    try:
        return torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:
        from scipy.linalg import svd as decompose

        parts = decompose(matrix.cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
        u, sizes, vh = (torch.from_numpy(part).to(matrix.device) for part in parts)
        return u, sizes, vh


def ridge_map(x: Tensor, y: Tensor, noise: float = 0.02) -> Tensor:
    """Return the W (d, d') that minimizes the mean of |(x + e) W - y|^2 over pairs and over e ~ N(0, noise^2 I).

    This is the closed form of XBT's linear projection, trained under noise with a squared loss (arXiv:2405.14715).
    Noise on x is equivalent to ridge regression with the penalty n noise^2 (Bishop, 1995).
    """
    x, y = x.double().cpu(), y.double()
    gram = x.mT @ x + len(x) * noise**2 * torch.eye(x.shape[-1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.mT @ y.cpu()).to(y.device)


def diagonal_scale(x: Tensor, y: Tensor) -> Tensor:
    """Return the factors s (d,) of the dimensions that minimize |X diag(s) - Y|^2; 1 where a column of X is zero."""
    x, y = x.double(), y.double()
    power = (x * x).sum(dim=0)
    return torch.where(power > 0, (x * y).sum(dim=0) / power.clamp_min(1e-30), 1.0)


def orthogonality_penalty(w: Tensor, threshold: float, sharpness: float) -> Tensor:
    """Compute the scalar sigmoid(sharpness (e - threshold)) e, where e = |W W' - I|_F; its gradient at e = 0 is 0.

    This is lambda-orthogonality, arXiv:2509.16664, eq. 6, where the threshold is called lambda. e measures how far W
    is from orthogonal; below the threshold the penalty is small. e grows with the width: 67.9 for W = 2 I of width 512.
    """
    gap = w @ w.mT - torch.eye(len(w), dtype=w.dtype, device=w.device)
    error = (gap.square().sum() + 1e-18).rsqrt().reciprocal()
    return torch.sigmoid(sharpness * (error - threshold)) * error


def rotation(upper: Tensor, width: int) -> Tensor:
    """Return the rotation matrix exp(P) (d, d) of the skew-symmetric P with upper triangle `upper` (d (d - 1) / 2,)."""
    rows, columns = torch.triu_indices(width, width, offset=1, device=upper.device)
    skew = upper.new_zeros(width, width).index_put((rows, columns), upper)
    return torch.linalg.matrix_exp(skew - skew.mT)


def fit_by_gradient(
    weights: Mapping[str, Tensor],
    loss: Callable[[Weights, Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    lr: float,
    steps: int,
    decay: float,
    select: Callable[[Weights, Tensor, Tensor], Tensor] | None = None,
) -> Weights:
    """Minimize a loss by full-batch AdamW, and return the weights with the least loss on held-out pairs.

    Every tenth pair is held out. With fewer than ten pairs, all pairs are used for the fit and for the selection.

    Args:
        weights: initial weights, which are not changed; the function returns them if no step reduces the loss.
        loss: (weights, X, Y) -> scalar.
        x: features X (n, d) of the new model.
        y: features Y (n, d') of the old model.
        lr: learning rate.
        steps: number of steps.
        decay: weight decay.
        select: loss that compares weights on the held-out pairs; if None, `loss`.
    """
    is_held = torch.arange(len(x), device=x.device) % HELD_OUT == HELD_OUT - 1
    fitted = x[~is_held], y[~is_held]
    chosen = (x[is_held], y[is_held]) if len(x) >= HELD_OUT else fitted
    select = loss if select is None else select
    with torch.enable_grad():
        now = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
        optimizer = torch.optim.AdamW(list(now.values()), lr=lr, weight_decay=decay, fused=True)
        best = {name: value.detach().clone() for name, value in now.items()}
        least = select(now, *chosen).detach()
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss(now, *fitted).backward()
            optimizer.step()
            if step % CHECK_EVERY == 0 or step == steps:
                found = select(now, *chosen).detach()
                is_better = found < least  # not read on the host, which would wait for the device
                least = torch.where(is_better, found, least)
                best = {name: torch.where(is_better, now[name].detach(), kept) for name, kept in best.items()}
    return best


def start_weights(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """Return initial weights ~ N(0, scale^2) on the CPU, from a generator whose seed is derived from `name`."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return scale * torch.randn(shape, generator=generator)
