"""Where the pairs of former categories lay, and new ones drawn there (StructAlign, SIGIR 2026, eqs. 14 and 22).

Shapes: n categories, P pairs, R draws, d width of the features. The two modalities are text (0) and video (1).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from methods.base import unit
from methods.layers.gather import world_size


def dispersion(features: Tensor) -> Tensor:
    """Mean of 1 - cos over all ordered pairs i != j of features (P, d): one category of eq. 22. 0 for a single pair."""
    pairs = max(1, len(features) * (len(features) - 1))
    return 1 - (unit(features).sum(dim=0).square().sum() - len(features)) / pairs


class ClassStatistics(nn.Module):
    """Mean and spread of each finished category, in both modalities. Buffers grow with the stream."""

    categories: Tensor  # (n,) int64 global indices
    means: Tensor  # (2, n, d)
    sigmas: Tensor  # (2, n) standard deviation of one coordinate
    dispersions: Tensor  # (2, n) of `dispersion`, as the category was learned

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("categories", torch.empty(0, dtype=torch.int64))
        self.register_buffer("means", torch.empty(0))
        self.register_buffer("sigmas", torch.empty(0))
        self.register_buffer("dispersions", torch.empty(0))

    def __len__(self) -> int:
        return len(self.categories)

    @torch.no_grad()
    def add(self, category: int, text: Tensor, video: Tensor, normalise: bool) -> None:
        """Take note of one category's pairs, whose features are text and video (P, d); replaces an older note.

        Args:
            normalise: bring the means to length 1, as below eq. 13; the released code does not.
        """
        both = torch.stack([text, video]).float()  # (2, P, d)
        mean = both.mean(dim=1)
        variance = both.var(dim=1, correction=1 if len(text) > 1 else 0)  # (2, d)
        keep = self.categories != category
        is_first = len(self.categories) == 0
        new = {
            "means": unit(mean) if normalise else mean,
            "sigmas": variance.mean(dim=-1).sqrt(),
            "dispersions": torch.stack([dispersion(text), dispersion(video)]),
        }
        for name, value in new.items():
            old = getattr(self, name)
            setattr(self, name, value[:, None] if is_first else torch.cat([old[:, keep], value[:, None]], dim=1))
        number = torch.tensor([category], device=self.categories.device)
        self.categories = torch.cat([self.categories[keep], number])

    @torch.no_grad()
    def draw(self, count: int, sigma: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 14: `count` pseudo pairs of categories drawn evenly, the same on all workers.

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
