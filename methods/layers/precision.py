"""Products that choose tokens are float32 whatever precision the towers have: rounded ones tie."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside, autocast is off; on `meta` tensors, which have none and are only counted, nothing changes."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
