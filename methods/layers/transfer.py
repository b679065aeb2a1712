"""Transfers from the host to the device without synchronisation, so that a GPU does not run out of work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pinned(x: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor in memory from which a GPU copies asynchronously; for a CPU, the tensor itself.

    The copy takes time, so the prefetching thread makes it and not the one that feeds the GPU.
    """
    return x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x


def to_device(x: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """Copy a CPU tensor, or whole numbers as int64, to the device: to a GPU asynchronously from pinned memory."""
    host = x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.int64, device="cpu")
    return pinned(host, device).to(device, non_blocking=device.type == "cuda")


def trim_padding(tokens: Tensor) -> Tensor:
    """Cut the pads after the longest of captions (B, L), if they are on the CPU.

    On a device they stay unchanged, since reading them would synchronise. The code that copies captions there cuts
    them before.
    """
    if tokens.device.type != "cpu" or not len(tokens):
        return tokens
    return tokens[:, : int(tokens.argmax(dim=-1).max()) + 1]  # the end-of-text id is the largest of the vocabulary
