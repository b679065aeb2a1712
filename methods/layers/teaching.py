"""What the strategies that distil share: the distance of two matrices of similarities, and features made once.

Shapes: B pairs, Q captions, V videos, T frames, L text length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from methods.backbone.clip import Clip
from methods.base import Batch, Frozen, Method
from methods.layers.losses import distillation


def both_ways(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) of scaled similarities (Q, V): mean over captions plus mean over videos.

    The papers write cross-entropies, which differ by the teacher's entropy: another value, the same
    gradient. This one is 0 where both agree.
    """
    return distillation(student, teacher, temperature) + distillation(student.mT, teacher.mT, temperature)


def clip_of(base: Method) -> Clip:
    """The backbone of a retriever.

    Raises:
        ValueError: if it has none.
    """
    clip = next((module for module in base.modules() if isinstance(module, Clip)), None)
    if clip is None:
        raise ValueError(f"{type(base).__name__} has no CLIP backbone, and this strategy needs one.")
    return clip


def frozen_start(base: Method) -> Frozen:
    """The retriever as its first task begins: pre-trained, with the parts that this task has added to it."""
    base.to(clip_of(base).logit_scale.device)  # new parts are still where they were made
    return Frozen(base)


class Heard:
    """Features that a retriever makes of a batch while it computes its losses, so that nobody makes them twice."""

    def __init__(self, base: Method, batch: Batch) -> None:
        self.base, self.batch = base, batch
        self._made: dict[str, Tensor] = {}

    def losses(self) -> dict[str, Tensor]:
        """The retriever's own losses; the features that it makes for them are kept."""
        for name in ("encode_video", "encode_text"):
            setattr(self.base, name, partial(self._listen, name, getattr(self.base, name)))
        try:
            return self.base.losses(self.batch)
        finally:
            for name in ("encode_video", "encode_text"):
                delattr(self.base, name)  # the class's own is back

    def videos(self) -> Tensor:
        """Features (B, ...) of this worker's videos."""
        if "encode_video" not in self._made:
            self._made["encode_video"] = self.base.encode_video(self.batch.frames)
        return self._made["encode_video"]

    def texts(self) -> Tensor:
        """Features (B, ...) of this worker's captions."""
        if "encode_text" not in self._made:
            self._made["encode_text"] = self.base.encode_text(self.batch.tokens)
        return self._made["encode_text"]

    def _listen(self, name: str, encode: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = encode(x, *args, **kwargs)
        if not args and not kwargs and (x is self.batch.frames or x is self.batch.tokens):
            self._made[name] = made
        return made
