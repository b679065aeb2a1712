"""Feature statistics of learned categories, and pseudo pairs drawn from them (StructAlign, SIGIR 2026, eqs. 14 and 22).

Shapes: B pairs, n categories, P pairs of a category, R pseudo pairs, d width of the features. A dimension of 2 is the
modality: text (0) and video (1).
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
    """Compute one category's term of eq. 22: the mean of 1 - cos over all pairs of different features, of P (P, d).

    It is 0 for a single feature.
    """
    if len(features) < 2:
        return features.new_zeros(())
    pairs = len(features) * (len(features) - 1)
    return 1 - (l2_normalize(features).sum(dim=0).square().sum() - len(features)) / pairs


def mean_dispersion(features: Tensor, categories: Tensor) -> Tensor:
    """Compute eq. 22 for a batch: the mean of `dispersion` over categories with at least two features.

    Args:
        features: (B, d).
        categories: (B,) category of each feature.
    """
    same = (categories[:, None] == categories).to(features.dtype)  # (B, B)
    pairs = same.sum(dim=1)  # (B,) number of features of each row's category
    x = l2_normalize(features).to(features.dtype)
    inner = same @ (same * (x @ x.mT)).sum(dim=1)  # (B,) |sum of the features of each row's category|^2
    found = 1 - (inner - pairs) / (pairs * (pairs - 1)).clamp(min=1)
    weight = (pairs > 1) / pairs  # the weights of a category sum to 1, or to 0 for a single feature
    return (weight * found).sum() / weight.sum().clamp(min=0.5)


def mean_deviation(features: Tensor, categories: Tensor) -> Tensor:
    """Compute |epsilon| of eq. 9 for a batch of n categories: the mean of |<m_c, m_c'> + 1 / (n - 1)| over c != c'.

    m_c is the mean unit feature of category c, minus the average of these means over categories, normalized. The result
    is 0 for equal angles between all categories, and for a single category. Shapes depend only on B, so the host need
    not wait until the GPU has counted the categories.

    Args:
        features: (B, d).
        categories: (B,) category of each feature.
    """
    same = (categories[:, None] == categories).to(features.dtype)  # (B, B)
    weight = 1 / same.sum(dim=1)  # (B,); the weights of a category sum to 1
    n = weight.sum()
    means = (same * weight) @ l2_normalize(features).to(features.dtype)  # (B, d) mean of each row's category
    centred = l2_normalize(means - (weight[:, None] * means).sum(dim=0) / n).to(features.dtype)
    departure = (centred @ centred.mT + 1 / (n - 1).clamp(min=0.5)).abs()
    different = weight[:, None] * weight * (1 - same)
    return (different * departure).sum() / (n * (n - 1)).clamp(min=0.5)


def geometry(features: Iterable[Tensor], categories: Tensor) -> Tensor:
    """Return `mean_dispersion` of text and video, then `mean_deviation` of text and video: (4,), without gradient.

    Args:
        features: (B, d) features of text, then of video.
        categories: (B,) category of each pair.
    """
    both = [side.detach() for side in features]
    return torch.stack([of(side, categories) for of in (mean_dispersion, mean_deviation) for side in both])


class ClassStatistics(nn.Module):
    """Mean and standard deviation of each learned category's features in both modalities. Buffers grow with the stream.

    Aligned features are features in the space in which they are aligned with prototypes.
    """

    categories: Tensor  # (n,) int64 global indices of the categories
    means: Tensor  # (2, n, d) mean features
    sigmas: Tensor  # (2, n) standard deviation of one dimension of the features: root of the mean variance
    aligned: Tensor  # (2, n, d) mean aligned features, computed when the category was learned
    dispersions: Tensor  # (2, n) `dispersion` of aligned features, computed when the category was learned

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
        """Store the statistics of one category's P pairs; they replace earlier statistics of that category.

        Args:
            category: global index of the category.
            pairs: (2, P, d) text and video features in the space where pseudo pairs are drawn.
            aligned: (2, P, d) aligned features of these pairs.
            normalise: whether to normalize the means to length 1, as the text after eq. 13 says; the released code
                does not.
        """
        self._add(category, pairs, aligned, normalise, self.categories.tolist())

    def _add(self, category: int, pairs: Tensor, aligned: Tensor, normalise: bool, known: Sequence[int]) -> None:
        """Implement `add`; `known` has the values of `self.categories`, which the caller has read."""
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
        """Call `add` for every category that occurs in batches.

        Args:
            batches: categories (B,), features (2, B, d) and aligned features (2, B, d) of pairs.
            normalise: see `add`.
        """
        seen = list(batches)
        rows = ((features[:, row], aligned[:, row]) for _, features, aligned in seen for row in range(aligned.shape[1]))
        numbers = torch.cat([self.categories, *(categories for categories, _, _ in seen)]).tolist()  # the only wait
        known = numbers[: len(self)]
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for category, pair in zip(numbers[len(self) :], rows, strict=True):
            found.setdefault(category, []).append(pair)
        for category, pairs in found.items():
            features, aligned = (torch.stack(side, dim=1) for side in zip(*pairs))
            self._add(category, features, aligned, normalise, known)
            known = [*(other for other in known if other != category), category]

    def geometry(self) -> dict[str, float]:
        """Return measures of the properties (P1)-(P3) of section 4.1 over the n learned categories; empty if n is 0.

        Keys: `micd_text` and `micd_video` are eq. 22, the dispersion within categories. `angle_text` and `angle_video`
        exist for n > 1. They are |epsilon| of eq. 9, the mean of |<m_c, m_c'> + 1 / (n - 1)| over pairs of different
        centered means. `modality_gap` is the mean of delta_c of (P3).
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
        return dict(zip(found, torch.stack(list(found.values())).tolist()))  # the only wait

    def similarities(self) -> Tensor:
        """Return the inner products (2, n, n) of eq. 9 between the category means of texts and of videos.

        The average of the means is subtracted, and the differences are normalized, as in `geometry`. Rows have the
        order of `categories`.
        """
        centred = l2_normalize(self.aligned - self.aligned.mean(dim=1, keepdim=True))
        return centred @ centred.mT

    @torch.no_grad()
    def draw(self, count: int, sigma: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw `count` pseudo pairs by eq. 14 from uniformly drawn categories; all workers get equal pairs.

        Args:
            count: R.
            sigma: standard deviation of the noise; if None, the standard deviation of each category.

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
