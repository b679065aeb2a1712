"""From the host to the device without a wait: a GPU whose host waits for it at every turn runs dry in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(x: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """A CPU tensor, or whole numbers as int64, on the device: a GPU fetches it from pinned memory in its own time."""
    host = x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.int64, device="cpu")
    if device.type == "cuda" and host.device.type == "cpu":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)


def trim_padding(tokens: Tensor) -> Tensor:
    """Captions (B, L) without the pads behind the longest one, where the host knows it: on the CPU.

    On a device they stay as they are, for its reading would be a wait: whoever copies captions there cuts them before.
    """
    if tokens.device.type != "cpu" or not len(tokens):
        return tokens
    return tokens[:, : int(tokens.argmax(dim=-1).max()) + 1]  # the end-of-text id is the largest of the vocabulary
