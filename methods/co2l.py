"""Co2L: pairs of former tasks are negatives, and how pairs relate stays as it was.

Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, sections 4.1 (asymmetric loss) and 4.2
(instance-wise relation distillation), over any retriever; methods/co2l_moco.py is the same as a competitor of
BMU-MoCo. With B pairs of the batch and M of the memory, S the retriever's similarity, s its factor:

    L_asym = (L_t2v + L_v2t) / 2 of the B pairs, where every caption is also pushed from the M videos and every
             video from the M captions; memory pairs are never anchors
    L = L_asym + weight L_IRD (methods/layers/relations.py) of S over all B + M pairs, student and teacher

What we changed, so that any retriever keeps its own loss: L_asym is that loss, `contrastive`, plus the term
`negatives`, which is what the M negatives add to a symmetric contrastive loss,

    (mean_i log(1 + sum_m e^(s S(q_i, v_m)) / sum_j e^(s S(q_i, v_j))) + the same of videos) / 2

Their sum is L_asym exactly where the retriever's loss is the symmetric one of methods/base.py. The teacher is
the model at the end of the previous task. Without memory the relations are those of the batch alone.

It keeps videos of former tasks, which the protocol of CTVR (arXiv:2503.10111) forbids: its rows belong
apart from those of methods that keep features only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from methods.base import Batch, Frozen, Method, Task, unit
from methods.families.strategy import ReplayConfig, ReplayStrategy
from methods.layers.distillation import EncodedOnce, RelationConfig, kept_across, kept_within
from methods.layers.gather import gather


@dataclass(frozen=True, kw_only=True)
class Co2LConfig(RelationConfig, ReplayConfig):
    """Nothing of it is published for retrieval."""

    base: str = "clip4clip"  # any retriever; its settings are base.*

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        RelationConfig.__post_init__(self)


class Features(NamedTuple):
    """What a retriever makes of a group of pairs, over all workers: (B, ...) each."""

    texts: Tensor
    videos: Tensor


class Co2L(ReplayStrategy):
    """Learn the batch against memory pairs; keep how all of them relate."""

    Config = Co2LConfig
    PRESETS = {"paper": {}, "shapes": {"base.lr": 4e-6}}  # shapes: with optim.lr_scale=50, for the small backbone
    config: Co2LConfig

    @classmethod
    def compares(cls, config: Co2LConfig) -> bool:
        return True

    def __init__(self, config: Co2LConfig, base: Method) -> None:
        super().__init__(config, base)
        self.teacher: Frozen | None = None

    def begin_task(self, task: Task) -> None:
        if task.index > 0 and self.config.weight:
            self.teacher = Frozen(self.base)
        super().begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.draw(len(batch.videos))
        if self.teacher is None and not len(rows):
            return self.base.losses(batch)
        encoded = EncodedOnce(self.base, batch)
        terms = encoded.losses()
        groups, student = [batch], [Features(gather(encoded.texts()), gather(encoded.videos()))]
        if len(rows):
            groups.append(self.memory.batch(rows))
            student.append(self._features(groups[1]))
            videos = [gather(group.videos) for group in groups]
            terms["negatives"] = self.negatives(student[0], student[1], videos[0][:, None] == videos[1][None, :])
        if self.teacher is not None:
            taught = [
                Features(
                    gather(self.teacher("encode_text", group.tokens)),
                    gather(self.teacher("encode_video", group.frames)),
                )
                for group in groups
            ]
            terms["distillation"] = self.config.weight * self.relations(student, taught)
        return terms

    def _features(self, group: Batch) -> Features:
        return Features(gather(self.base.encode_text(group.tokens)), gather(self.base.encode_video(group.frames)))

    def negatives(self, anchors: Features, memory: Features, same: Tensor) -> Tensor:
        """What memory pairs (M, ...) add to the contrastive loss of the batch (B, ...).

        `same` (B, M) says which of them are the same video, and so no negatives.
        """
        with torch.autocast(anchors.videos.device.type, enabled=False):
            scale = self.base.scale().float()
            own = scale * _similarity(self.base, anchors, anchors)
            of_texts = (scale * _similarity(self.base, anchors, memory)).masked_fill(same, float("-inf"))
            of_videos = (scale * _similarity(self.base, memory, anchors)).mT.masked_fill(same, float("-inf"))
            return (_added(own, of_texts) + _added(own.mT, of_videos)) / 2

    def relations(self, student: Sequence[Features], teacher: Sequence[Features]) -> Tensor:
        """L_IRD over all groups of pairs."""
        assert self.teacher is not None
        with torch.autocast(student[0].videos.device.type, enabled=False):
            if self.config.ird == "intra":
                return kept_within(_vectors(student), _vectors(teacher), self.config)
            new = _all_similarities(self.base, student)
            with torch.no_grad():
                old = _all_similarities(self.teacher.module, teacher)
            return kept_across(new, old, self.config)


def _added(own: Tensor, others: Tensor) -> Tensor:
    """mean_i log(1 + sum_m e^others_im / sum_j e^own_ij) of scaled similarities (B, B) and (B, M)."""
    return (torch.cat([own, others], dim=1).logsumexp(dim=1) - own.logsumexp(dim=1)).mean()


def _similarity(method: Method, asking: Features, asked: Features) -> Tensor:
    """S of captions and videos, (Q, V).

    Raises:
        ValueError: if the retriever has several for each pair.
    """
    found = method.score(asking.texts.float(), asked.videos.float()).float()
    if found.ndim != 2:
        raise ValueError(
            f"{type(method).__name__} scores each pair by {found.shape[-1]} numbers, and relations need one. "
            "Choose another base, or another score of it."
        )
    return found


def _all_similarities(method: Method, groups: Sequence[Features]) -> Tensor:
    """S (G, G) of all captions and all videos. Captions of different groups may have different numbers of words."""
    return torch.cat([torch.cat([_similarity(method, a, b) for b in groups], dim=1) for a in groups])


def _vectors(groups: Sequence[Features]) -> list[Tensor]:
    """Unit vectors (G, d) of all captions and all videos; of several words or frames, of their mean."""
    return [
        torch.cat([unit(x if x.ndim == 2 else x.float().mean(dim=1)) for x in modality])
        for modality in zip(*groups, strict=True)
    ]
