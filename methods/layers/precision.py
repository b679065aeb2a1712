"""Helpers for autocast: turn it off where float32 is needed, and cast a tensor once for several products."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off on `device`; for the device `meta` it does nothing."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def in_autocast(x: Tensor) -> Tensor:
    """Cast x to autocast's dtype, as autocast does before each product; without autocast, return x unchanged."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind))
