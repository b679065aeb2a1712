"""Keeps computations that select tokens in float32 whatever the towers' precision, since rounded values tie."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off inside; on `meta` tensors, which have no values, it has no effect."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
