"""DER on momentum contrast: memory pairs keep the features that they once had.

Buzzega et al., "Dark Experience for General Continual Learning", arXiv:2004.07211, eq. 5-6, as a competitor
of BMU-MoCo (NeurIPS 2022, table 1, "DER"). The network's response is the unit feature of either modality:

    L = L_moco(batch) + alpha / 2 mean_i (||q_i^V - z_i^V||^2 + ||q_i^T - z_i^T||^2)   over memory pairs i

summed over d, not averaged (for unit vectors that would be d times smaller). There is no contrastive loss
on memory pairs, and their keys do not enter the queue. What we changed: DER writes while it trains; here a
pair and its features enter the reservoir when its task ends, un-augmented, so features are the final ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from methods.base import Batch, Method
from methods.families.momentum import PAPER, SHAPES_WRAPPED
from methods.families.strategy import ReplayConfig, ReplayStrategy
from methods.layers.memory import Policy


@dataclass(frozen=True, kw_only=True)
class DERMoCoConfig(ReplayConfig):
    """Tuned by search_spaces/der_moco.py. The weight is not published for this task."""

    base: str = "base_moco"
    buffer: Policy = "reservoir"  # as the original; ring: a place for each task
    alpha: float = 0.5
    target: Literal["features", "similarities"] = "features"  # similarities: of all memory pairs of a step, (B, B)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0:
            raise ValueError(f"alpha must be >= 0, got {self.alpha}. Use 0 to train `{self.base}` alone.")


class DERMoCo(ReplayStrategy):
    """Hold the features of former pairs where they were."""

    Config = DERMoCoConfig
    PRESETS = {"paper": {**PAPER, "method.memory": 10_000}, "shapes": SHAPES_WRAPPED}
    needs_momentum = True
    config: DERMoCoConfig

    def __init__(self, config: DERMoCoConfig, base: Method) -> None:
        super().__init__(config, base)

    def kept_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.base.encode_video(batch.frames).float(), self.base.encode_text(batch.tokens).float()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = self.base.losses(batch)
        if self.config.alpha and len(self.memory):
            terms["distillation"] = self.config.alpha * self.distil(self.memory.draw(len(batch.videos)))
        return terms

    def distil(self, rows: Tensor) -> Tensor:
        """How far the features of memory pairs `rows` have gone."""
        pairs = self.memory.batch(rows)
        video, text = self.base.encode_video(pairs.frames).float(), self.base.encode_text(pairs.tokens).float()
        kept_video, kept_text = self.memory.video_features[rows], self.memory.text_features[rows]
        with torch.autocast(video.device.type, enabled=False):
            if self.config.target == "similarities":
                return (video @ text.mT - kept_video @ kept_text.mT).square().mean()
            return ((video - kept_video).square().sum(-1) + (text - kept_text).square().sum(-1)).mean() / 2
