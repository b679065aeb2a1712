"""Transfers from the host to the device, so that a GPU does not wait for the host; and captions cut to length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pinned(x: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to pinned memory if `device` is a GPU; otherwise return the tensor itself.

    The copy takes time, so the prefetching thread calls this function, not the thread that launches GPU work.
    """
    return x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x


def to_device(x: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """Copy a CPU tensor, or a list of integers as int64, to the device; copies to a GPU are asynchronous and pinned."""
    host = x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.int64, device="cpu")
    return pinned(host, device).to(device, non_blocking=device.type == "cuda")


def trim_padding(tokens: Tensor) -> Tensor:
    """Cut captions (B, L) on the CPU to the length of the longest, end-of-text token included.

    Captions on a GPU are returned unchanged, because reading them would wait for the GPU. The code that copies captions
    to a GPU trims them first.
    """
    if tokens.device.type != "cpu" or not len(tokens):
        return tokens
    return tokens[:, : int(tokens.argmax(dim=-1).max()) + 1]  # the end-of-text token has the largest id


def truncate(tokens: Tensor, words: int) -> Tensor:
    """Cut captions (B, L) to (B, min(L, words)) tokens; a shortened caption ends with its end-of-text token."""
    if tokens.shape[1] <= words:
        return tokens
    last = torch.where(tokens.argmax(dim=-1) >= words, tokens.amax(dim=-1), tokens[:, words - 1])
    return torch.cat([tokens[:, : words - 1], last[:, None]], dim=1)
