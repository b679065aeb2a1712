"""ER-ring on momentum contrast: pairs of former tasks are trained on beside those of the present one.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", arXiv:1902.10486, as a competitor of
BMU-MoCo (NeurIPS 2022, table 1, "ER-ring"): memory pairs are simply training samples of the same loss.
There are no classes, so the ring has one place for each task. Every step of a later task draws as many
memory pairs as the batch holds; all keys, theirs too, enter the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from methods.base import Batch, Method
from methods.families.momentum import PAPER, SHAPES_WRAPPED
from methods.families.strategy import ReplayConfig, ReplayStrategy
from methods.layers.memory import join


@dataclass(frozen=True, kw_only=True)
class ERRingMoCoConfig(ReplayConfig):
    """Tuned by search_spaces/er_ring_moco.py."""

    base: str = "base_moco"
    quota: Literal["dynamic", "static"] = "dynamic"  # a ring is dealt to the tasks so far, or to all of the stream
    ratio: float = 1.0  # memory pairs for each pair of the batch; the step costs 1 + ratio times as much

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio < 0:
            raise ValueError(f"ratio must be >= 0, got {self.ratio}. Use 1 for as many memory pairs as new ones.")


class ERRingMoCo(ReplayStrategy):
    """Train on the batch and on pairs of former tasks at once."""

    Config = ERRingMoCoConfig
    PRESETS = {"paper": {**PAPER, "method.memory": 10_000}, "shapes": SHAPES_WRAPPED}
    needs_momentum = True
    config: ERRingMoCoConfig

    def __init__(self, config: ERRingMoCoConfig, base: Method) -> None:
        super().__init__(config, base, config.quota)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.draw(round(self.config.ratio * len(batch.videos)))
        return self.base.losses(join(batch, self.memory.batch(rows)) if len(rows) else batch)
