"""Keeps products that select tokens in float32, whatever precision the towers have: rounded values tie."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off inside; on `meta` tensors, which have no values, nothing changes."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
