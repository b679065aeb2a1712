"""Cache of frozen weights that autocast would cast again in every step.

Autocast caches the casts of trained weights for one forward pass, but casts a frozen weight before each product. In a
training step with a frozen CLIP, these casts are 200 kernels, which read and write all weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass
class _Seen:
    state: tuple[int, int]  # version and address of the weight when it was last read
    cast: Tensor | None = None


_KEPT: ContextVar[WeakTensorKeyDictionary | None] = ContextVar("kept", default=None)


@contextmanager
def frozen_casts() -> Iterator[None]:
    """Context manager: cache the casts of frozen weights in this thread.

    A weight is cast and cached when it is read for the second time without a change in between. Weights of a momentum
    encoder change in every step, so their casts are not cached.
    """
    token = _KEPT.set(WeakTensorKeyDictionary())
    try:
        yield
    finally:
        _KEPT.reset(token)


def cast_once(weight: Tensor) -> Tensor:
    """Return the cached autocast copy of a frozen float32 weight.

    A trained weight, and a weight that is read for the first time, is returned unchanged.
    """
    if torch.compiler.is_compiling() or weight.requires_grad or torch.is_inference_mode_enabled():
        return weight
    if (kept := _KEPT.get()) is None or weight.is_inference():
        return weight
    kind = weight.device.type
    if weight.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
        return weight
    seen: _Seen | None = kept.get(weight)
    state = weight._version, weight.data_ptr()
    if seen is None or seen.state != state:
        kept[weight] = _Seen(state)
        return weight
    dtype = torch.get_autocast_dtype(kind)
    if seen.cast is None or seen.cast.dtype != dtype:
        seen.cast = weight.detach().to(dtype)
    return seen.cast


class CastOnceLinear(nn.Linear):
    """Linear layer whose frozen weights are cast only once within `frozen_casts`."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, cast_once(self.weight), None if self.bias is None else cast_once(self.bias))
