"""LwF on momentum contrast: distills the similarities of a batch from the previous model.

Li & Hoiem, "Learning without Forgetting", arXiv:1606.09282, as a competitor of BMU-MoCo (NeurIPS 2022,
table 1, "LwF"), which does not give a formula. Our port: the "classes" of a video are the captions of its batch.

    S = q^V q^T' / tau_d of the student, S* of the teacher, both (B, B); q^V, q^T: features of videos and captions
    L = L_moco + alpha / 2 (mean KL(softmax S*_i || softmax S_i) over rows + the same over columns)

The teacher is theta at the end of the previous task, so the first task has only L_moco, the wrapped retriever's loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Frozen, Task
from ctvr.methods.families.momentum import MOCO_UNPUBLISHED, PAPER, SHAPES_WRAPPED, MomentumRetriever
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.contrastive import distillation
from ctvr.methods.layers.replay.queues import Pair
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class LwFMoCoConfig:
    """Settings of LwF on momentum contrast, with ranges in search_spaces/. Weight and temperature are not published."""

    UNPUBLISHED = MOCO_UNPUBLISHED

    base: str = setting("base_moco", doc="name of the wrapped momentum-contrast retriever, whose settings are base.*")
    alpha: float = setting(1.0, doc="weight of the distillation loss", unpublished=True, later=True, part="loss")
    tau: float = setting(0.07, doc="temperature tau_d of the distillation", unpublished=True, later=True, part="loss")
    distill: Literal["inbatch_kl", "queue_kl", "feature_l2"] = setting(
        "inbatch_kl",
        doc="distillation loss. inbatch_kl: KL over the pairs of the batch; queue_kl: KL over the pair's own key and "
        "the queue, which teacher and student share; feature_l2: ||q - q*||^2 in both modalities",
        unpublished=True,
        later=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "alpha", hint=f"Use 0 to train `{self.base}` alone.")
        require(self, "> 0", "tau", hint="Use 0.07, the retriever's temperature.")


class LwFMoCo(Strategy):
    """Strategy that keeps a batch's similarities close to those of the previous model, from the second task on."""

    Config = LwFMoCoConfig
    PRESETS = {"paper": PAPER, "shapes": SHAPES_WRAPPED}
    needs_momentum = True
    config: LwFMoCoConfig
    base: MomentumRetriever

    def begin_task(self, task: Task) -> None:
        if task.index > 0 and self.config.alpha:
            self.teacher = Frozen(self.base.encoders)
        super().begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self.teacher is None:
            return super().losses(batch)
        queries, keys = self.base.queries(batch), self.base.keys(batch)
        taught: Pair = self.teacher("pair", batch.frames, batch.tokens)
        return {
            "contrastive": self.base.contrast(queries, keys, gather(batch.video_ids)),
            "distillation": self.config.alpha * self.distil(queries, taught, keys[0]),
        }

    def distil(self, student: Pair, teacher: Pair, keys: Pair) -> Tensor:
        """Compute the distillation loss, a scalar; only `queue_kl` reads `keys` (of the first momentum encoders)."""
        with torch.autocast(student.video.device.type, enabled=False):
            if self.config.distill == "feature_l2":
                return sum(((q - z) ** 2).sum(dim=-1).mean() for q, z in zip(student, teacher)) / 2  # type: ignore[return-value]
            if self.config.distill == "queue_kl":
                video, text = self._over_queue(student, keys), self._over_queue(teacher, keys)
                return (distillation(video[0], text[0], 1.0) + distillation(video[1], text[1], 1.0)) / 2
            new = student.video @ student.text.mT / self.config.tau  # (B, B)
            old = teacher.video @ teacher.text.mT / self.config.tau
            return (distillation(new, old, 1.0) + distillation(new.mT, old.mT, 1.0)) / 2

    def _over_queue(self, queries: Pair, keys: Pair) -> tuple[Tensor, Tensor]:
        """Return similarities (B, 1 + R) of videos and of captions to the same pair's key and to R queued keys."""
        queue, _ = self.base.momenta[0].queue.content()
        video = torch.cat([(queries.video * keys.text).sum(-1, keepdim=True), queries.video @ queue.text.mT], dim=1)
        text = torch.cat([(queries.text * keys.video).sum(-1, keepdim=True), queries.text @ queue.video.mT], dim=1)
        return video / self.config.tau, text / self.config.tau
