"""Co2L on momentum contrast: memory pairs are negatives, and relations between pairs are distilled.

Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, sections 4.1 (asymmetric loss) and
4.2 (instance-wise relation distillation), as a competitor of BMU-MoCo (NeurIPS 2022, table 1, "Co2L"),
which does not give a formula for two modalities. Our port has B pairs of the batch, and G pairs with those of the
memory. q^V and q^T are the features of their videos and captions:

    L_asym: the momentum-contrast loss of the B pairs alone; keys of memory pairs are negatives, never anchors
    L = L_asym + weight L_IRD (methods/layers/losses/distillation.py) of S = q^V q^T' (G, G), student and teacher

The teacher is theta at the end of the previous task. methods/co2l.py applies Co2L to any retriever.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Frozen, Task
from ctvr.methods.families.momentum import MOCO_UNPUBLISHED, PAPER, SHAPES_WRAPPED, MomentumRetriever
from ctvr.methods.families.strategy import ReplayConfig, ReplayStrategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.distillation import RelationConfig, kept_across, kept_within
from ctvr.methods.layers.replay.queues import Pair
from ctvr.methods.settings import setting


@dataclass(frozen=True, kw_only=True)
class Co2LMoCoConfig(RelationConfig, ReplayConfig):
    """Settings of Co2L on momentum contrast, with ranges in search_spaces/."""

    UNPUBLISHED = MOCO_UNPUBLISHED

    base: str = setting("base_moco", doc="name of the wrapped momentum-contrast retriever, whose settings are base.*")

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        RelationConfig.__post_init__(self)


class Co2LMoCo(ReplayStrategy):
    """Strategy for a momentum retriever that contrasts the batch with memory pairs, and distills their similarities."""

    Config = Co2LMoCoConfig
    PRESETS = {"paper": {**PAPER, "method.buffer_size": 10_000}, "shapes": SHAPES_WRAPPED}
    needs_momentum = True
    config: Co2LMoCoConfig
    base: MomentumRetriever

    def begin_task(self, task: Task) -> None:
        if task.index > 0 and self.config.weight:
            self.teacher = Frozen(self.base.encoders)
        super().begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.sample(len(batch.video_ids))
        groups = [batch, self.memory.batch(rows)] if len(rows) else [batch]
        keys = [self.base.keys(group) for group in groups]
        videos = [gather(group.video_ids) for group in groups]
        queries = [self.base.queries(batch)]
        extra = (keys[1], videos[1]) if len(rows) else ((), None)
        terms = {"contrastive": self.base.contrast(queries[0], keys[0], videos[0], *extra)}
        if self.teacher is not None:
            queries += [self.base.queries(group) for group in groups[1:]]
            taught = [self.teacher("pair", group.frames, group.tokens) for group in groups]
            student, teacher = (Pair(*(torch.cat(part) for part in zip(*pairs))) for pairs in (queries, taught))
            terms["distillation"] = self.config.weight * self.relations(student, teacher)
        return terms

    def relations(self, student: Pair, teacher: Pair) -> Tensor:
        """Compute L_IRD, a scalar, from features (G, d) by the student and by the teacher."""
        with torch.autocast(student.video.device.type, enabled=False):
            if self.config.ird == "intra":
                return kept_within(student, teacher, self.config)
            new, old = (pair.text @ pair.video.mT for pair in (student, teacher))
            return kept_across(new, old, self.config)
