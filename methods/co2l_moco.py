"""Co2L on momentum contrast: memory pairs are negatives, and relations are kept.

Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, sections 4.1 (asymmetric loss) and
4.2 (instance-wise relation distillation), as a competitor of BMU-MoCo (NeurIPS 2022, table 1, "Co2L"),
which gives no formula for two modalities. Our port, over the batch (B) and memory pairs, G together:

    L_asym: the momentum-contrast loss of the B pairs alone; keys of memory pairs are negatives, never anchors
    S = q^V q^T' / kappa of the student, S* with kappa* of the teacher, both (G, G)
    L_IRD = -mean_i sum_j softmax(S*_i)_j log softmax(S_i)_j, mean of rows and columns;  L = L_asym + weight L_IRD

L_IRD is a cross-entropy: its least value is the teacher's entropy, not 0. `ird=intra` is the original form
on q^V q^V' and q^T q^T' without their diagonals. The teacher is theta at the end of the previous task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.base import Batch, Frozen, Method, Task
from methods.layers.gather import gather
from methods.layers.queues import Pair
from methods.moco import PAPER, SHAPES_WRAPPED, MomentumRetriever
from methods.wrapping import ReplayConfig, ReplayStrategy, momentum_base


@dataclass(frozen=True, kw_only=True)
class Co2LMoCoConfig(ReplayConfig):
    """Tuned by search_spaces/co2l_moco.py. Defaults are those of the original's code."""

    base: str = "base_moco"  # any method of methods/moco.py
    weight: float = 1.0  # lambda, eq. 8
    kappa: float = 0.2  # of the student
    kappa_teacher: float = 0.01  # kappa*
    ird: Literal["cross", "intra"] = "cross"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight < 0:
            raise ValueError(f"weight must be >= 0, got {self.weight}. Use 0 for no relation distillation.")
        if min(self.kappa, self.kappa_teacher) <= 0:
            raise ValueError(
                f"kappa and kappa_teacher are temperatures and must be > 0, got {self.kappa} and {self.kappa_teacher}."
            )


class Co2LMoCo(ReplayStrategy):
    """Learn the batch against memory pairs; keep how all of them relate."""

    Config = Co2LMoCoConfig
    PRESETS = {"paper": {**PAPER, "method.memory": 10_000}, "shapes": SHAPES_WRAPPED}
    policy = "ring"
    needs_momentum = True
    config: Co2LMoCoConfig
    base: MomentumRetriever

    def __init__(self, config: Co2LMoCoConfig, base: Method) -> None:
        super().__init__(config, momentum_base(base, "co2l_moco"))
        self.teacher: Frozen | None = None

    def begin_task(self, task: Task) -> None:
        if task.index > 0 and self.config.weight:
            self.teacher = Frozen(self.base.encoders)
        super().begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.draw(len(batch.videos))
        groups = [batch, self.memory.batch(rows)] if len(rows) else [batch]
        keys = [self.base.keys(group) for group in groups]
        videos = [gather(group.videos) for group in groups]
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
        """L_IRD of features (G, d)."""
        kappa, kappa_teacher = self.config.kappa, self.config.kappa_teacher
        with torch.autocast(student.video.device.type, enabled=False):
            if self.config.ird == "cross":
                new, old = (pair.video @ pair.text.mT for pair in (student, teacher))
                both = [(new, old), (new.mT, old.mT)]
            else:
                both = [(_others(x @ x.mT), _others(z @ z.mT)) for x, z in zip(student, teacher)]
            return sum(F.cross_entropy(n / kappa, (o / kappa_teacher).softmax(-1)) for n, o in both) / 2  # type: ignore[return-value]


def _others(similarities: Tensor) -> Tensor:
    """(G, G) without its diagonal: (G, G - 1)."""
    size = len(similarities)
    keep = ~torch.eye(size, dtype=torch.bool, device=similarities.device)
    return similarities[keep].view(size, size - 1)
