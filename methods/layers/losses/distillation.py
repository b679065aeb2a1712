"""Shared parts of distillation strategies: losses on scores and on relations, and features computed once per batch.

`symmetric_distillation` distills scaled similarities (Q, V) of captions and videos. `kept_across` and `kept_within` are
instance-wise relation distillation (Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, section 4.2,
eq. 5-8). The relations of a pair are the softmax of its similarities to all G pairs of the step. The student is trained
to have the relations of the teacher. With similarities S, temperatures kappa, and * for the teacher:

    L_IRD = -mean_i sum_j softmax(S*_i / kappa*)_j log softmax(S_i / kappa)_j

The minimum of this cross-entropy is the entropy of the teacher's relations, not 0. `ird=cross` is our form for two
modalities: S (G, G) has the similarities of captions and videos, diagonal included; rows and columns are averaged.
`ird=intra` is the original form within each modality, without the diagonal, averaged over both modalities.

Shapes: B pairs, G pairs of all workers and groups, Q captions, V videos, T frames, L text length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Frozen, Method
from ctvr.methods.layers.losses.contrastive import distillation
from ctvr.methods.layers.patching import patched
from ctvr.methods.settings import require, setting


def symmetric_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute T^2 KL(teacher || student) of scaled similarities (Q, V): mean over captions plus mean over videos.

    The papers use cross-entropies, which exceed this loss by the entropy of the teacher and have equal gradients.
    This loss is 0 if student and teacher are equal.
    """
    return distillation(student, teacher, temperature) + distillation(student.mT, teacher.mT, temperature)


def backbone_of(base: Method) -> Clip:
    """Return the CLIP backbone of a retriever.

    Raises:
        ValueError: if the retriever lacks one.
    """
    clip = next((module for module in base.modules() if isinstance(module, Clip)), None)
    if clip is None:
        name = type(base).__name__
        raise ValueError(
            f"{name} has no CLIP backbone, which this strategy needs. Use another base, such as clip4clip."
        )
    return clip


def frozen_start(base: Method) -> Frozen:
    """Return a frozen copy of the retriever; call it in the first task, after the retriever's own `begin_task`."""
    base.to(backbone_of(base).logit_scale.device)  # modules that the task added may be on another device
    return Frozen(base)


class EncodedOnce:
    """Features of a batch, each computed once: features that the retriever computes for its losses are reused."""

    def __init__(self, base: Method, batch: Batch) -> None:
        self.base, self.batch = base, batch
        self._made: dict[str, Tensor] = {}

    def losses(self) -> dict[str, Tensor]:
        """Return the losses of the retriever, and store the features that it computes for them."""
        names = ("encode_video", "encode_text")
        with patched(self.base, **{name: partial(self._keep, name, getattr(self.base, name)) for name in names}):
            return self.base.losses(self.batch)

    def videos(self) -> Tensor:
        """Return features (B, ...) of the videos of this worker."""
        if "encode_video" not in self._made:
            self._made["encode_video"] = self.base.encode_video(self.batch.frames)
        return self._made["encode_video"]

    def texts(self) -> Tensor:
        """Return features (B, ...) of the captions of this worker."""
        if "encode_text" not in self._made:
            self._made["encode_text"] = self.base.encode_text(self.batch.tokens)
        return self._made["encode_text"]

    def _keep(self, name: str, encode: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = encode(x, *args, **kwargs)
        if not args and not kwargs and (x is self.batch.frames or x is self.batch.tokens):
            self._made[name] = made
        return made


@dataclass(frozen=True, kw_only=True)
class RelationConfig:
    """Settings of relation distillation; the default values are from the released code of Co2L."""

    weight: float = setting(
        1.0, doc="weight lambda of relation distillation, eq. 8", unpublished=True, later=True, part="loss"
    )
    kappa: float = setting(0.2, doc="temperature kappa of the student", unpublished=True, later=True, part="loss")
    kappa_teacher: float = setting(
        0.01, doc="temperature kappa* of the teacher", unpublished=True, later=True, part="loss"
    )
    ird: Literal["cross", "intra"] = setting(
        "cross",
        doc="relations that are distilled. cross: between captions and videos; intra: within each modality",
        later=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "weight", hint="Use 0 for no relation distillation.")
        require(self, "> 0", "kappa", hint="Co2L uses 0.2.")
        require(self, "> 0", "kappa_teacher", hint="Co2L uses 0.01.")


def kept_across(new: Tensor, old: Tensor, config: RelationConfig) -> Tensor:
    """Compute L_IRD between modalities, averaged over rows and columns.

    Args:
        new: (G, G) the student's similarities of captions and videos.
        old: (G, G) the teacher's similarities.
        config: temperatures.
    """
    return (_row_loss(new, old, config) + _row_loss(new.mT, old.mT, config)) / 2


def kept_within(new: Sequence[Tensor], old: Sequence[Tensor], config: RelationConfig) -> Tensor:
    """Compute L_IRD within each modality by eq. 5, averaged over the modalities.

    Args:
        new: unit features (G, d) of the student, one tensor for each modality.
        old: unit features (G, d) of the teacher.
        config: temperatures.
    """
    pairs = zip(new, old, strict=True)
    both = [_row_loss(_off_diagonal(x @ x.mT), _off_diagonal(z @ z.mT), config) for x, z in pairs]
    return torch.stack(both).mean()


def _row_loss(new: Tensor, old: Tensor, config: RelationConfig) -> Tensor:
    """Compute eq. 6 from similarities of the student (`new`) and of the teacher (`old`), averaged over rows."""
    return F.cross_entropy(new / config.kappa, (old / config.kappa_teacher).softmax(dim=-1))


def _off_diagonal(similarities: Tensor) -> Tensor:
    """Return the rows without their diagonal elements: (G, G) -> (G, G - 1)."""
    size = len(similarities)
    keep = ~torch.eye(size, dtype=torch.bool, device=similarities.device)
    return similarities[keep].view(size, size - 1)
