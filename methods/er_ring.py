"""Experience replay: pairs of former tasks are trained on beside those of the present one.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", arXiv:1902.10486, over any retriever;
preset `bmu-moco` is BMU-MoCo's competitor "ER-Ring". There are no classes, so the ring has one place for
each task. Every step of a later task draws memory pairs; the retriever's loss sees both.

It keeps videos of former tasks, which the protocol of CTVR (arXiv:2503.10111) forbids: its rows belong
apart from those of methods that keep features only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from methods.base import Batch, Change, Method
from methods.families.momentum import PAPER
from methods.families.strategy import ReplayConfig, ReplayStrategy
from methods.layers.memory import join


@dataclass(frozen=True, kw_only=True)
class ERRingConfig(ReplayConfig):
    """Nothing of it is published for retrieval."""

    base: str = "clip4clip"  # any retriever; its settings are base.*
    quota: Literal["dynamic", "static"] = "dynamic"  # a ring is dealt to the tasks so far, or to all of the stream
    ratio: float = 1.0  # memory pairs for each pair of the batch; the step costs 1 + ratio times as much

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio < 0:
            raise ValueError(f"ratio must be >= 0, got {self.ratio}. Use 1 for as many memory pairs as new ones.")


class ERRing(ReplayStrategy):
    """Train on the batch and on pairs of former tasks at once."""

    Config = ERRingConfig
    PRESETS = {
        "paper": {},
        "shapes": {"base.lr": 4e-6},  # with optim.lr_scale=50, for the small backbone
        # BMU-MoCo's competitor (NeurIPS 2022, table 1): around its momentum contrast, with its memory
        "bmu-moco": Change({"method.base": "base_moco"}),
        "bmu-moco-paper": {**PAPER, "method.base": "base_moco", "method.memory": 10_000},
    }
    config: ERRingConfig

    def __init__(self, config: ERRingConfig, base: Method) -> None:
        super().__init__(config, base, config.quota)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.draw(round(self.config.ratio * len(batch.videos)))
        return self.base.losses(join(batch, self.memory.batch(rows)) if len(rows) else batch)
