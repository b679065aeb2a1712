"""Low-rank prompts of a task for both towers, and the losses on them (LPI, arXiv:2501.14369).

Shapes: K layers, m prompts of a layer, r rank, D width of a tower, t tasks, c centers of a task, d joint embedding, n
vectors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.layers.losses.contrastive import contrastive


class LowRankPrompts(nn.Module):
    """Prompts of one task: prompt p of layer l is P[l, p] = (1 / r) sum_s A[l, s] B[p, s] C[:, s].

    Both towers share A. All factors are initialized from N(0, 0.5^2), as in the released code.
    """

    def __init__(self, layers: int, count: int, rank: int, vision_width: int, text_width: int) -> None:
        super().__init__()

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.5 * torch.randn(*shape))

        self.shared = drawn(layers, rank)  # A
        self.vision_places, self.text_places = drawn(count, rank), drawn(count, rank)  # B
        self.vision_widths, self.text_widths = drawn(vision_width, rank), drawn(text_width, rank)  # C

    def vision(self) -> Tensor:
        """Return the prompts (K, m, D) of the vision tower."""
        return _product(self.shared, self.vision_places, self.vision_widths)

    def text(self) -> Tensor:
        """Return the prompts (K, m, D) of the text tower."""
        return _product(self.shared, self.text_places, self.text_widths)


def _product(layers: Tensor, places: Tensor, widths: Tensor) -> Tensor:
    return torch.einsum("ls,ps,ds->lpd", layers, places, widths) / layers.shape[1]


def alignment(vision: Tensor, text: Tensor, temperature: float) -> Tensor:
    """Compute L_align, a scalar: a contrastive loss in which layer l of one tower matches layer l of the other.

    A layer is represented by the means of its prompts over the width, (m,), and layers are compared by inner products.

    Args:
        vision: prompts (K, m, D).
        text: prompts (K, m, D').
        temperature: divisor of both means, so that inner products are divided by its square.
    """
    a, b = vision.mean(dim=-1) / temperature, text.mean(dim=-1) / temperature  # (K, m)
    return contrastive(a @ b.mT)


def relatedness(rows: Tensor, similar: Tensor, temperature: float, twice: bool = False) -> Tensor:
    """Compute L_task of one tower, a scalar: it makes prompts of similar tasks similar, of other tasks dissimilar.

    For each task, binary cross-entropies are averaged over the similar tasks and over the other tasks, and the two
    means are added; the mean over no tasks is 0. A task counts as similar to itself, with a constant loss.

    Args:
        rows: (t, n) flattened prompts of each task.
        similar: (t, t) bool, with True on the diagonal.
        temperature: temperature of the cosines.
        twice: whether to apply the sigmoid twice, as in the released code.
    """
    unit = F.normalize(rows, dim=-1)
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    logits = (unit @ unit.mT / temperature).masked_fill(itself, torch.inf)
    logits = logits.sigmoid() if twice else logits.clamp(max=torch.finfo(logits.dtype).max)
    target = similar.to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    parts = [(losses * each).sum(dim=1) / each.sum(dim=1).clamp_min(1) for each in (target, 1 - target)]
    return (parts[0] + parts[1]).mean()


@torch.no_grad()
def k_means(x: Tensor, count: int, rounds: int = 100) -> Tensor:
    """Return the k-means centers (count, d) of vectors x (n, d), computed deterministically.

    The first initial center is x[0]; each following center is the vector farthest from the centers so far. Then at most
    `rounds` iterations of Lloyd's algorithm are run. A center to which no vector is assigned is not moved.
    """
    centres = x[:1]
    for _ in range(count - 1):
        farthest = torch.cdist(x, centres).amin(dim=1).argmax()
        centres = torch.cat([centres, x[farthest][None]])
    nearest = x.new_full((len(x),), -1, dtype=torch.int64)
    for _ in range(rounds):
        found = torch.cdist(x, centres).argmin(dim=1)
        if torch.equal(found, nearest):
            break
        nearest, members = found, F.one_hot(found, count).to(x.dtype)  # (n, count)
        sizes = members.sum(dim=0)[:, None]
        centres = torch.where(sizes > 0, members.mT @ x / sizes.clamp_min(1), centres)
    return centres


def nearest_task(features: Tensor, keys: Tensor) -> Tensor:
    """Return, for each vector, the index of the task with the nearest center in L1 distance: (n,) int64.

    Args:
        features: (n, d) vectors.
        keys: (t, c, d) centers of each task; infinite for a task without centers.
    """
    return torch.cdist(features, keys.flatten(0, 1), p=1).unflatten(1, keys.shape[:2]).amin(dim=2).argmin(dim=1)
