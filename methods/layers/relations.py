"""Instance-wise relation distillation: how the pairs of a step relate to one another stays as it was.

Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, section 4.2, eq. 5-8. A pair's relations are
the softmax of its similarities to all G pairs of the step; the student keeps the teacher's:

    L_IRD = -mean_i sum_j softmax(S*_i / kappa*)_j log softmax(S_i / kappa)_j        * is the teacher

a cross-entropy, whose least value is the teacher's entropy and not 0. `ird=cross` is our form for two
modalities: S (G, G) of captions and videos with its diagonal, rows and columns averaged. `ird=intra` is the
original form within each modality, without the diagonal, averaged over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RelationConfig:
    """Settings of the distillation. Defaults are those of the original's code."""

    weight: float = 1.0  # lambda, eq. 8
    kappa: float = 0.2  # of the student
    kappa_teacher: float = 0.01  # kappa*
    ird: Literal["cross", "intra"] = "cross"

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"weight must be >= 0, got {self.weight}. Use 0 for no relation distillation.")
        if min(self.kappa, self.kappa_teacher) <= 0:
            raise ValueError(
                f"kappa and kappa_teacher are temperatures and must be > 0, got {self.kappa} and {self.kappa_teacher}. "
                "Co2L uses 0.2 and 0.01."
            )


def kept_across(new: Tensor, old: Tensor, config: RelationConfig) -> Tensor:
    """L_IRD of similarities (G, G) between modalities: the mean of rows and columns."""
    return (_kept(new, old, config) + _kept(new.mT, old.mT, config)) / 2


def kept_within(new: Sequence[Tensor], old: Sequence[Tensor], config: RelationConfig) -> Tensor:
    """L_IRD of unit features (G, d), one tensor for each modality, by eq. 5: the mean over modalities."""
    both = [_kept(_others(x @ x.mT), _others(z @ z.mT), config) for x, z in zip(new, old, strict=True)]
    return torch.stack(both).mean()


def _kept(new: Tensor, old: Tensor, config: RelationConfig) -> Tensor:
    """Eq. 6 over rows of similarities."""
    return F.cross_entropy(new / config.kappa, (old / config.kappa_teacher).softmax(dim=-1))


def _others(similarities: Tensor) -> Tensor:
    """(G, G) without its diagonal: (G, G - 1)."""
    size = len(similarities)
    keep = ~torch.eye(size, dtype=torch.bool, device=similarities.device)
    return similarities[keep].view(size, size - 1)
