"""Low-rank prompts shared by both towers of a task, and the losses over them (LPI, arXiv:2501.14369).

Shapes: K layers, m prompts of a layer, r rank, D width of a tower, t tasks, d joint embedding, n vectors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.layers.losses.contrastive import contrastive


class LowRankPrompts(nn.Module):
    """The factors of one task: P[l, p] = (1 / r) sum_s A[l, s] B[p, s] C[:, s], with one A for both towers.

    All factors are drawn from N(0, 0.5^2), as released.
    """

    def __init__(self, layers: int, count: int, rank: int, vision_width: int, text_width: int) -> None:
        super().__init__()

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.5 * torch.randn(*shape))

        self.shared = drawn(layers, rank)  # A
        self.vision_places, self.text_places = drawn(count, rank), drawn(count, rank)  # B
        self.vision_widths, self.text_widths = drawn(vision_width, rank), drawn(text_width, rank)  # C

    def vision(self) -> Tensor:
        """Return the prompts of the vision tower, (K, m, D)."""
        return _product(self.shared, self.vision_places, self.vision_widths)

    def text(self) -> Tensor:
        """Return the prompts of the text tower, (K, m, D)."""
        return _product(self.shared, self.text_places, self.text_widths)


def _product(layers: Tensor, places: Tensor, widths: Tensor) -> Tensor:
    return torch.einsum("ls,ps,ds->lpd", layers, places, widths) / layers.shape[1]


def alignment(vision: Tensor, text: Tensor, temperature: float) -> Tensor:
    """Compute L_align: layer l of one tower answers layer l of the other.

    Args:
        vision: prompts (K, m, D); their means over D are compared, not normalised.
        text: prompts (K, m, D').
        temperature: divides each side, so that products are divided by its square.
    """
    a, b = vision.mean(dim=-1) / temperature, text.mean(dim=-1) / temperature  # (K, m)
    return contrastive(a @ b.mT)


def relatedness(rows: Tensor, similar: Tensor, temperature: float, twice: bool = False) -> Tensor:
    """Compute one tower's part of L_task: flattened prompts of similar tasks are close, of others are not.

    The binary cross-entropies of a row's similar tasks and of its other tasks are averaged separately and added. A
    row without other tasks has the first part only. A task is similar to itself by definition, with a constant loss.

    Args:
        rows: (t, n), one for each task.
        similar: (t, t) bool, with True on the diagonal.
        temperature: temperature of the cosines.
        twice: whether to apply a second sigmoid, as the released code does.
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
    """Return `count` centres (count, d) of vectors x (n, d), without a random number.

    Each start is the vector that is farthest from the earlier ones; then Lloyd's rounds follow. A centre without
    vectors stays.
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
    """Return the task (n,) whose closest centre has the least L1 distance.

    Args:
        features: (n, d).
        keys: (t, c, d) centres of each task; a task whose centres are not known has infinite ones.
    """
    return torch.cdist(features, keys.flatten(0, 1), p=1).unflatten(1, keys.shape[:2]).amin(dim=2).argmin(dim=1)
