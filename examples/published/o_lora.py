"""O-LoRA: each task learns a LoRA in a subspace that is orthogonal to the subspaces of earlier tasks.

Wang et al., "Orthogonal Subspace Learning for Language Model Continual Learning", arXiv:2310.14152:

    W_t = W + sum over i <= t of B_i A_i                    only B_t and A_t are trained
    loss = L + lambda sum over i < t of |A_i A_t'|^2        orthogonality

What we changed: LoRA is on q and v of both CLIP towers, with scale 1 and without dropout; in the authors' code the
scale is 4 and the dropout rate 0.1. |.|^2 is the sum of squares; the authors' code sums absolute values instead, and
can also penalize the norms of A_t and B_t.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr import (
    Batch,
    Capabilities,
    Clip,
    Method,
    ParamGroup,
    Task,
    TowerLoRA,
    l2_normalize,
    mean_pool,
    require,
    setting,
    weighted_seams,
)


@dataclass(frozen=True, kw_only=True)
class OLoraConfig:
    """Settings of O-LoRA."""

    lr: float = setting(1e-4, doc="learning rate")
    rank: int = setting(4, doc="rank of a task's LoRA")
    ortho: float = setting(0.5, doc="weight lambda of the orthogonality", later=True)

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", "ortho")
        require(self, ">= 1", "rank")


class OLora(Method):
    """Frozen CLIP with the sum of several LoRAs, one for each task."""

    Config = OLoraConfig

    @classmethod
    def capabilities(cls, config: OLoraConfig) -> Capabilities:
        return Capabilities(uses_all_parameters=True)

    def __init__(self, config: OLoraConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.vision, self.text = nn.ModuleList(), nn.ModuleList()

    def begin_task(self, task: Task) -> None:
        for tower, adapters in ((self.backbone.vision, self.vision), (self.backbone.text, self.text)):
            adapters.append(TowerLoRA(tower, ("q", "v"), self.config.rank, self.config.rank))

    def param_groups(self) -> list[ParamGroup]:
        newest = [*self.vision[-1].parameters(), *self.text[-1].parameters()]
        return [{"name": "lora", "params": newest, "lr": self.config.lr}]

    def encode_video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames, _sum(self.vision)))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens, _sum(self.text)))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        if len(self.vision) > 1:
            overlaps = [self._overlap(tower) for tower in (self.vision, self.text)]
            terms["ortho"] = self.config.ortho * torch.stack(overlaps).sum()
        return terms

    def _overlap(self, tower: nn.ModuleList) -> Tensor:
        rows = [torch.stack([lora.A for block in each.adapters() for lora in block.values()]) for each in tower]
        return (torch.cat(rows[:-1], dim=1) @ rows[-1].mT).square().sum()  # (weights with LoRA, r (t - 1), r)


def _sum(tower: nn.ModuleList) -> list | None:
    return weighted_seams([(each, 1.0) for each in tower]) if len(tower) else None
