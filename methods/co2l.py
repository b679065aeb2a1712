"""Co2L: uses stored pairs of earlier tasks as negatives, and distills the relations between pairs.

Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, sections 4.1 (asymmetric loss) and 4.2
(instance-wise relation distillation), over any retriever; methods/co2l_moco.py is the variant compared in BMU-MoCo's
paper. The batch has B pairs and the memory M. S is the retriever's similarity and s = 1 / temperature its factor:

    L_asym = (L_t2v + L_v2t) / 2 of the B pairs, where every caption is also pushed away from the M videos and every
             video from the M captions; memory pairs are never anchors
    L = L_asym + weight L_IRD (methods/layers/losses/distillation.py) of S over all B + M pairs, student and teacher

Difference: any retriever keeps its own loss, the term `contrastive`. Co2L adds the term `negatives`, which adds the M
negatives to a symmetric contrastive loss. For captions q and videos v, i and j in the batch, m in the memory, it is

    (mean_i log(1 + sum_m e^(s S(q_i, v_m)) / sum_j e^(s S(q_i, v_j))) + the same of videos) / 2

The sum equals L_asym if the retriever's loss is the default one, `Method.info_nce`. The teacher is the model at the end
of the previous task. Without a memory, L_IRD covers only the pairs of the batch.
The released code multiplies L_asym by T / 0.07, which is 7.14 at its T of 0.5, and L_IRD by 1. This equals weight=0.14
for a mean of two directions (preset `original`), and 0.28 for their sum.

Co2L keeps videos of earlier tasks, which the protocol of CTVR (arXiv:2503.10111) forbids. Tables therefore compare
methods with such a memory only with each other (`keeps_videos`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Frozen, Method, Recipe, Task, l2_normalize
from ctvr.methods.families.released_recipes import REPLAY_LEFT_OUT, sgd
from ctvr.methods.families.strategy import ReplayConfig, ReplayStrategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.distillation import EncodedOnce, RelationConfig, kept_across, kept_within
from ctvr.methods.settings import setting

_UNIT = 0.07 / 0.5  # the released loss is this file's divided by _UNIT, so the rate is divided, the decay multiplied
ORIGINAL = Recipe(
    "chaht01/Co2L@3af7064",
    {
        "method.buffer_size": (200, "run.sh: --mem_size 200"),
        "method.weight": (_UNIT, "main.py: --distill_power 1.0, with a loss times T / 0.07, T = 0.5"),
        "method.kappa": (0.2, "main.py: --current_temp"),
        "method.kappa_teacher": (0.01, "main.py: --past_temp"),
        "method.ird": ("intra", "main.py: within one modality, without the diagonal"),
        **sgd(
            0.5 / _UNIT,
            100,
            512,
            "run.sh: --learning_rate 0.5 of that loss, --batch_size 512, --epochs 100",
            momentum=(0.9, "main.py: --momentum"),
            weight_decay=(1e-4 * _UNIT, "main.py: --weight_decay 1e-4 of that loss"),
            name=("sgd", "util.py: set_optimizer"),
            decay_parameters=("all", "util.py: set_optimizer"),
            grad_clip=(None, "main.py: there is none"),
            schedule=("cosine_by_epoch", "util.py: adjust_learning_rate, --cosine"),
            warmup=(0.1, "util.py: warmup_learning_rate, 10 epochs"),
        ),
        "base.start_scale": (2.0, "run.sh: --temp 0.5, fixed"),
    },
    (
        *REPLAY_LEFT_OUT,
        "500 epochs in the first task",
        "one optimizer for all tasks: its momentum crosses them",
        "two augmented views of an image: here its video and its caption",
        "memory images are shuffled into the data of the task; here as many are drawn as there are pairs",
        "its loss is divided by all rows of the batch, images of the memory included: here by the present pairs",
        "its teacher stays in training mode: the same where no layer depends on the mode, as in CLIP",
        "its memory keeps equal shares of each class: here of each task",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Co2LConfig(RelationConfig, ReplayConfig):
    """Settings of Co2L; no paper publishes values for retrieval."""

    UNPUBLISHED = ("method.buffer_size", "method.buffer_policy", "method.ird", "base.lr")

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        RelationConfig.__post_init__(self)


class Features(NamedTuple):
    """Features (B, ...) of a group of pairs, one tensor for captions and one for videos, gathered from all workers."""

    texts: Tensor
    videos: Tensor


class Co2L(ReplayStrategy):
    """Strategy that contrasts the batch with memory pairs, and distills the similarities among all pairs."""

    Config = Co2LConfig
    PRESETS = {
        "paper": {},
        "original": ORIGINAL,
        "shapes": {"base.lr": 4e-6},  # with optim.lr_scale=50, for the small backbone
    }
    config: Co2LConfig

    @classmethod
    def compares(cls, config: Co2LConfig) -> bool:
        return True

    def begin_task(self, task: Task) -> None:
        if task.index > 0 and self.config.weight:
            self.teacher = Frozen(self.base)
        super().begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.sample(len(batch.video_ids))
        if self.teacher is None and not len(rows):
            return self.base.losses(batch)
        encoded = EncodedOnce(self.base, batch)
        terms = encoded.losses()
        groups, student = [batch], [Features(gather(encoded.texts()), gather(encoded.videos()))]
        if len(rows):
            groups.append(self.memory.batch(rows))
            student.append(self._features(groups[1]))
            videos = [gather(group.video_ids) for group in groups]
            terms["negatives"] = self.negatives(student[0], student[1], videos[0][:, None] == videos[1][None, :])
        if self.teacher is not None:
            taught = [
                Features(
                    gather(self.teacher("encode_own_captions", group)),
                    gather(self.teacher("encode_video", group.frames)),
                )
                for group in groups
            ]
            terms["distillation"] = self.config.weight * self.relations(student, taught)
        return terms

    def _features(self, group: Batch) -> Features:
        return Features(gather(self.base.encode_own_captions(group)), gather(self.base.encode_video(group.frames)))

    def negatives(self, anchors: Features, memory: Features, same: Tensor) -> Tensor:
        """Compute the term, a scalar, that memory pairs (M, ...) add to the contrastive loss of the batch (B, ...).

        `same` (B, M), bool, is true where both pairs have the same video; these are not negatives of each other.
        """
        with torch.autocast(anchors.videos.device.type, enabled=False):
            scale = self.base.scale().float()
            own = scale * _similarity(self.base, anchors, anchors)
            of_texts = (scale * _similarity(self.base, anchors, memory)).masked_fill(same, float("-inf"))
            of_videos = (scale * _similarity(self.base, memory, anchors)).mT.masked_fill(same, float("-inf"))
            return (_compute_addition(own, of_texts) + _compute_addition(own.mT, of_videos)) / 2

    def relations(self, student: Sequence[Features], teacher: Sequence[Features]) -> Tensor:
        """Compute L_IRD, a scalar, over all groups of pairs, from features by the student and by the teacher."""
        assert self.teacher is not None
        with torch.autocast(student[0].videos.device.type, enabled=False):
            if self.config.ird == "intra":
                return kept_within(_vectors(student), _vectors(teacher), self.config)
            new = _all_similarities(self.base, student)
            with torch.no_grad():
                old = _all_similarities(self.teacher.module, teacher)
            return kept_across(new, old, self.config)


def _compute_addition(own: Tensor, others: Tensor) -> Tensor:
    """Compute mean_i log(1 + sum_m e^others_im / sum_j e^own_ij); `own` (B, B), `others` (B, M) are scaled."""
    return (torch.cat([own, others], dim=1).logsumexp(dim=1) - own.logsumexp(dim=1)).mean()


def _similarity(method: Method, asking: Features, asked: Features) -> Tensor:
    """Compute the similarities S (Q, V) between the captions of `asking` and the videos of `asked`.

    Raises:
        ValueError: if the retriever returns several scores for each pair.
    """
    found = method.score(asking.texts.float(), asked.videos.float()).float()
    if found.ndim != 2:
        raise ValueError(
            f"{type(method).__name__} computes {found.shape[-1]} scores for each pair, but relations "
            "need one. Use another method.base, or another setting of its score."
        )
    return found


def _all_similarities(method: Method, groups: Sequence[Features]) -> Tensor:
    """Compute S (G, G) between all captions and videos of the groups, which may differ in the number of words."""
    return torch.cat([torch.cat([_similarity(method, a, b) for b in groups], dim=1) for a in groups])


def _vectors(groups: Sequence[Features]) -> list[Tensor]:
    """Return two tensors (G, d) of unit vectors, of captions and of videos; words or frames are averaged."""
    return [
        torch.cat([l2_normalize(x if x.ndim == 2 else x.float().mean(dim=1)) for x in modality])
        for modality in zip(*groups, strict=True)
    ]
