"""A-GEM for any retriever: projects the gradient of a step, so that the loss of memory pairs does not increase.

Chaudhry et al., "Efficient Lifelong Learning with A-GEM", arXiv:1812.00420, eq. 11:

    g~ = g - min(0, g' r) / (r' r) r     g: gradient of the batch, r: gradient of pairs sampled from the memory

What we changed: the loss is that of the wrapped retriever, over pairs instead of classes. The memory has equally many
pairs of each task (`buffer_policy`), instead of equally many of each class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr import Batch, ReplayConfig, ReplayStrategy, require, setting


@dataclass(frozen=True, kw_only=True)
class AGemConfig(ReplayConfig):
    """Settings of A-GEM."""

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    reference: int = setting(
        8, doc="number of memory pairs that each worker draws for the reference gradient", part="loss", later=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 2", "reference", hint="Use 8.")


class AGem(ReplayStrategy):
    """A strategy that removes from a gradient the part that would increase the loss of memory pairs."""

    Config = AGemConfig

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        if torch.is_grad_enabled() and len(self.memory):
            earlier = self.memory.batch(self.memory.sample(min(self.config.reference, len(self.memory))))
            terms["memory"] = torch.stack(list(self.base.losses(earlier).values())).sum()  # its gradient is r
        return terms

    def combine_gradients(self, gradients: dict[str, Tensor]) -> Tensor:
        r = gradients.pop("memory", None)
        g = super().combine_gradients(gradients)
        return g if r is None else g - (g @ r).clamp(max=0) / (r @ r).clamp(min=1e-20) * r  # eq. 11
