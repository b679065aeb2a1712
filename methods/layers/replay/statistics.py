"""Feature statistics of former categories, and pseudo pairs drawn from them (StructAlign, SIGIR 2026, eqs. 14 and 22).

Shapes: n categories, P pairs, R draws, d width of the features. The two modalities are text (0) and video (1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.methods.base import l2_normalize
from ctvr.methods.layers.gather import world_size
from ctvr.methods.layers.transfer import to_device


def dispersion(features: Tensor) -> Tensor:
    """Average 1 - cos over all ordered pairs i != j of features (P, d): one category of eq. 22. 0 for a single pair."""
    if len(features) < 2:
        return features.new_zeros(())
    pairs = len(features) * (len(features) - 1)
    return 1 - (l2_normalize(features).sum(dim=0).square().sum() - len(features)) / pairs


def mean_dispersion(features: Tensor, categories: Tensor) -> Tensor:
    """Compute eq. 22 in one batch: the mean `dispersion` of the categories (B,) with several features (B, d)."""
    same = (categories[:, None] == categories).to(features.dtype)  # (B, B)
    pairs = same.sum(dim=1)  # (B,) of each row's category
    x = l2_normalize(features).to(features.dtype)
    inner = same @ (same * (x @ x.mT)).sum(dim=1)  # of each row's category: |sum of its features|^2
    found = 1 - (inner - pairs) / (pairs * (pairs - 1)).clamp(min=1)
    weight = (pairs > 1) / pairs  # a category counts once
    return (weight * found).sum() / weight.sum().clamp(min=0.5)


def mean_deviation(features: Tensor, categories: Tensor) -> Tensor:
    """Compute |epsilon| of eq. 9 in one batch: the distance of its n categories from equal angles. 0 for a single one.

    The mean of |<m_c, m_c'> + 1 / (n - 1)| over different categories. m_c are their means of unit features (B, d),
    minus the mean of these, normalised. All shapes are those of the batch, so that a GPU need not wait for a count.
    """
    same = (categories[:, None] == categories).to(features.dtype)  # (B, B)
    weight = 1 / same.sum(dim=1)  # (B,): a category counts once
    n = weight.sum()
    means = (same * weight) @ l2_normalize(features).to(features.dtype)  # (B, d) of each row's category
    centred = l2_normalize(means - (weight[:, None] * means).sum(dim=0) / n).to(features.dtype)
    departure = (centred @ centred.mT + 1 / (n - 1).clamp(min=0.5)).abs()
    different = weight[:, None] * weight * (1 - same)
    return (different * departure).sum() / (n * (n - 1)).clamp(min=0.5)


def geometry(features: Iterable[Tensor], categories: Tensor) -> Tensor:
    """Return (4,): `mean_dispersion` of both modalities of a batch, then `mean_deviation`; without gradient."""
    both = [side.detach() for side in features]
    return torch.stack([of(side, categories) for of in (mean_dispersion, mean_deviation) for side in both])


class ClassStatistics(nn.Module):
    """Mean and spread of each finished category, in both modalities. Buffers grow with the stream."""

    categories: Tensor  # (n,) int64 global indices
    means: Tensor  # (2, n, d)
    sigmas: Tensor  # (2, n) standard deviation of one coordinate
    aligned: Tensor  # (2, n, d) mean of each category where it is aligned with its prototype
    dispersions: Tensor  # (2, n) of `dispersion` there; both as the category was learned

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("categories", torch.empty(0, dtype=torch.int64))
        self.register_buffer("means", torch.empty(0))
        self.register_buffer("sigmas", torch.empty(0))
        self.register_buffer("aligned", torch.empty(0))
        self.register_buffer("dispersions", torch.empty(0))

    def __len__(self) -> int:
        return len(self.categories)

    @torch.no_grad()
    def add(self, category: int, pairs: Tensor, aligned: Tensor, normalise: bool) -> None:
        """Store the statistics of one category's pairs; replaces earlier ones.

        Args:
            category: its global index.
            pairs: (2, P, d) text and video features in the space where pseudo pairs are drawn.
            aligned: (2, P, d) the same in the space where they are aligned with prototypes.
            normalise: bring the means to length 1, as below eq. 13; the released code does not.
        """
        self._add(category, pairs, aligned, normalise, self.categories.tolist())

    def _add(self, category: int, pairs: Tensor, aligned: Tensor, normalise: bool, known: Sequence[int]) -> None:
        """Implement `add`; `known` are the values of `categories`, already on the host."""
        both, aligned = pairs.float(), aligned.float()
        mean = both.mean(dim=1)
        variance = both.var(dim=1, correction=1 if both.shape[1] > 1 else 0)  # (2, d)
        device = self.categories.device
        keep = to_device([row for row, other in enumerate(known) if other != category], device)
        new = {
            "means": l2_normalize(mean) if normalise else mean,
            "sigmas": variance.mean(dim=-1).rsqrt().reciprocal(),
            "aligned": aligned.mean(dim=1),
            "dispersions": torch.stack([dispersion(side) for side in aligned]),
        }
        for name, value in new.items():
            old = getattr(self, name)
            setattr(self, name, torch.cat([old[:, keep], value[:, None]], dim=1) if known else value[:, None])
        self.categories = torch.cat([self.categories[keep], to_device([category], device)])

    @torch.no_grad()
    def observe(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]], normalise: bool) -> None:
        """Call `add` for every category of (categories (B,), features (2, B, d), aligned features (2, B, d))."""
        seen = list(batches)
        rows = ((features[:, row], aligned[:, row]) for _, features, aligned in seen for row in range(aligned.shape[1]))
        numbers = torch.cat([self.categories, *(categories for categories, _, _ in seen)]).tolist()  # one wait
        known = numbers[: len(self)]
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for category, pair in zip(numbers[len(self) :], rows, strict=True):
            found.setdefault(category, []).append(pair)
        for category, pairs in found.items():
            features, aligned = (torch.stack(side, dim=1) for side in zip(*pairs))
            self._add(category, features, aligned, normalise, known)
            known = [*(other for other in known if other != category), category]

    def geometry(self) -> dict[str, float]:
        """Measure (P1)-(P3) of section 4.1 over the categories so far; empty before the first.

        `micd_*`: eq. 22, within categories. `angle_*`: |epsilon| of eq. 9, the mean distance of the inner products
        of different centred means from -1 / (n - 1), for n > 1. `modality_gap`: the mean of delta_c of (P3).
        """
        if not len(self):
            return {}
        found = {
            "modality_gap": (1 - l2_normalize(self.aligned[0]) @ l2_normalize(self.aligned[1]).mT).diagonal().mean()
        }
        n = len(self)
        different = to_device([place for place in range(n * n) if place % (n + 1)], self.aligned.device)
        for name, means, spread in zip(("text", "video"), self.aligned, self.dispersions):
            found[f"micd_{name}"] = spread.mean()
            if n > 1:
                centred = l2_normalize(means - means.mean(dim=0))
                inner = (centred @ centred.mT).flatten()[different]
                found[f"angle_{name}"] = (inner + 1 / (n - 1)).abs().mean()
        return dict(zip(found, torch.stack(list(found.values())).tolist()))  # one wait

    def similarities(self) -> Tensor:
        """Return (2, n, n) inner products of eq. 9 among the category means of texts and of videos.

        Centred by the mean of the means, as in `geometry`. Rows have the order of `categories`.
        """
        centred = l2_normalize(self.aligned - self.aligned.mean(dim=1, keepdim=True))
        return centred @ centred.mT

    @torch.no_grad()
    def draw(self, count: int, sigma: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw `count` pseudo pairs by eq. 14, of uniformly drawn categories; all workers draw the same pairs.

        Args:
            count: R.
            sigma: standard deviation of the noise; None takes each category's own.

        Returns:
            categories (R,), text (R, d) and video (R, d).
        """
        which = torch.randint(len(self), (count,), device=self.means.device)
        noise = torch.randn(2, count, self.means.shape[-1], device=self.means.device)
        if world_size() > 1:
            dist.broadcast(which, 0)
            dist.broadcast(noise, 0)
        spread = self.sigmas[:, which, None] if sigma is None else sigma
        text, video = self.means[:, which] + spread * noise
        return self.categories[which], text, video
