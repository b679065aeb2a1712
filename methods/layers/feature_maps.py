"""Maps between the feature spaces of two models, fitted to features of the same items.

Rows of X (n, d) are features of the new model, rows of Y (n, d) those of the old one; a map takes x to the old space.
Closed forms are computed in float64 on the CPU, gradients on the features' device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Weights = dict[str, Tensor]
HELD_OUT = 10  # one pair of so many selects the step that is kept
CHECK_EVERY = 10  # steps between looks at the held-out pairs


def procrustes(x: Tensor, y: Tensor, ridge: float = 0.0) -> Tensor:
    """Return the orthogonal R (d, d) with the least |X R - Y|^2 - 2 ridge tr R, reflections included.

    For features of two widths, R (d, d') has orthonormal rows or columns.

    X'Y + ridge I = U S V', R = U V' (Schoenemann, 1966). `ridge` > 0 pulls R towards the identity where the pairs do
    not determine it, as with n < d.
    """
    cross = (x.double().mT @ y.double()).cpu() + ridge * torch.eye(x.shape[-1], y.shape[-1], dtype=torch.float64)
    u, _, vh = torch.linalg.svd(cross, full_matrices=False)
    return (u @ vh).to(x.device)


def ridge_map(x: Tensor, y: Tensor, noise: float = 0.02) -> Tensor:
    """Return the W (d, d') with the least mean |(x + e) W - y|^2 over e ~ N(0, noise^2 I).

    XBT's linear projection under noise (arXiv:2405.14715) with its squared loss, in closed form: noise on x is a ridge
    n noise^2 (Bishop, 1995).
    """
    x, y = x.double().cpu(), y.double()
    gram = x.mT @ x + len(x) * noise**2 * torch.eye(x.shape[-1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.mT @ y.cpu()).to(y.device)


def diagonal_scale(x: Tensor, y: Tensor) -> Tensor:
    """Return the s (d,) with the least |X s - Y|^2, one factor for each number; 1 where X is zero."""
    x, y = x.double(), y.double()
    power = (x * x).sum(dim=0)
    return torch.where(power > 0, (x * y).sum(dim=0) / power.clamp_min(1e-30), 1.0)


def orthogonality_penalty(w: Tensor, threshold: float, sharpness: float) -> Tensor:
    """Compute sigmoid(sharpness (e - threshold)) e with e = |W W' - I|_F, a scalar; its gradient at e = 0 is 0.

    lambda-orthogonality, arXiv:2509.16664, eq. 6: a distance from the orthogonal matrices that is free below the
    threshold lambda. e grows with the width: W = 2 I of 512 numbers has 67.9.
    """
    gap = w @ w.mT - torch.eye(len(w), dtype=w.dtype, device=w.device)
    error = (gap.square().sum() + 1e-18).rsqrt().reciprocal()
    return torch.sigmoid(sharpness * (error - threshold)) * error


def rotation(upper: Tensor, width: int) -> Tensor:
    """Return exp(P) (d, d) of the skew P whose upper triangle has the numbers `upper` (d (d - 1) / 2,): orthogonal."""
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
    """Minimise a loss by AdamW over all pairs at once, and return the weights that are best on held-out pairs.

    Every tenth pair is held out; with fewer than ten, the fitted pairs select.

    Args:
        weights: initial weights; they are not changed.
        loss: (weights, X, Y) -> scalar.
        x, y: features (n, d).
        lr: learning rate.
        steps: maximum number of steps; the initial weights are a candidate, too.
        decay: weight decay.
        select: loss on held-out pairs; None: `loss`.
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
                is_better = found < least  # stays on the device: no wait
                least = torch.where(is_better, found, least)
                best = {name: torch.where(is_better, now[name].detach(), kept) for name, kept in best.items()}
    return best


def start_weights(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """Return normal random numbers times `scale` on the CPU, which depend on the name and not on earlier draws."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return scale * torch.randn(shape, generator=generator)
