"""Shared parts of distillation strategies: losses on answers and on relations, and features computed once per batch.

Answers are scaled similarities (Q, V): `symmetric_distillation`. Relations are instance-wise relation distillation,
Cha et al., "Co2L: Contrastive Continual Learning", arXiv:2106.14413, section 4.2, eq. 5-8. A pair's relations are
the softmax of its similarities to all G pairs of the step; the student keeps the teacher's:

    L_IRD = -mean_i sum_j softmax(S*_i / kappa*)_j log softmax(S_i / kappa)_j        * is the teacher

a cross-entropy, whose least value is the teacher's entropy and not 0. `ird=cross` is our form for two
modalities: S (G, G) of captions and videos with its diagonal, rows and columns averaged. `ird=intra` is the
original form within each modality, without the diagonal, averaged over both.

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

    The papers write cross-entropies, which differ by the teacher's entropy: another value, the same
    gradient. This loss is 0 where both agree.
    """
    return distillation(student, teacher, temperature) + distillation(student.mT, teacher.mT, temperature)


def backbone_of(base: Method) -> Clip:
    """Return the backbone of a retriever.

    Raises:
        ValueError: if it has none.
    """
    clip = next((module for module in base.modules() if isinstance(module, Clip)), None)
    if clip is None:
        raise ValueError(f"{type(base).__name__} has no CLIP backbone, and this strategy needs one.")
    return clip


def frozen_start(base: Method) -> Frozen:
    """Copy and freeze the retriever at the start of its first task, including the parts that this task added."""
    base.to(backbone_of(base).logit_scale.device)  # new parts are still on the device of their creation
    return Frozen(base)


class EncodedOnce:
    """Features of a batch, computed once: those of the retriever's own losses are reused."""

    def __init__(self, base: Method, batch: Batch) -> None:
        self.base, self.batch = base, batch
        self._made: dict[str, Tensor] = {}

    def losses(self) -> dict[str, Tensor]:
        """Compute the retriever's own losses and keep the features computed for them."""
        names = ("encode_video", "encode_text")
        with patched(self.base, **{name: partial(self._keep, name, getattr(self.base, name)) for name in names}):
            return self.base.losses(self.batch)

    def videos(self) -> Tensor:
        """Return features (B, ...) of this worker's videos."""
        if "encode_video" not in self._made:
            self._made["encode_video"] = self.base.encode_video(self.batch.frames)
        return self._made["encode_video"]

    def texts(self) -> Tensor:
        """Return features (B, ...) of this worker's captions."""
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
    """Settings of the distillation. Defaults are those of the original's code."""

    weight: float = setting(1.0, doc="weight of distillation lambda, eq. 8", unpublished=True, later=True, part="loss")
    kappa: float = setting(0.2, doc="temperature of the student", unpublished=True, later=True, part="loss")
    kappa_teacher: float = setting(
        0.01, doc="temperature kappa* of the teacher", unpublished=True, later=True, part="loss"
    )
    ird: Literal["cross", "intra"] = setting(
        "cross", doc="distilled relations: between the modalities, or within each", later=True, part="loss"
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "weight", hint="Use 0 for no relation distillation.")
        require(self, "> 0", "kappa", hint="Co2L uses 0.2.")
        require(self, "> 0", "kappa_teacher", hint="Co2L uses 0.01.")


def kept_across(new: Tensor, old: Tensor, config: RelationConfig) -> Tensor:
    """Compute L_IRD of similarities (G, G) between modalities: the mean of rows and columns."""
    return (_kept(new, old, config) + _kept(new.mT, old.mT, config)) / 2


def kept_within(new: Sequence[Tensor], old: Sequence[Tensor], config: RelationConfig) -> Tensor:
    """Compute L_IRD of unit features (G, d), one tensor for each modality, by eq. 5: the mean over modalities."""
    both = [_kept(_others(x @ x.mT), _others(z @ z.mT), config) for x, z in zip(new, old, strict=True)]
    return torch.stack(both).mean()


def _kept(new: Tensor, old: Tensor, config: RelationConfig) -> Tensor:
    """Compute eq. 6 over rows of similarities."""
    return F.cross_entropy(new / config.kappa, (old / config.kappa_teacher).softmax(dim=-1))


def _others(similarities: Tensor) -> Tensor:
    """Remove the diagonal of (G, G): (G, G - 1)."""
    size = len(similarities)
    keep = ~torch.eye(size, dtype=torch.bool, device=similarities.device)
    return similarities[keep].view(size, size - 1)
