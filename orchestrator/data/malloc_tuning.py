"""Memory that a training on a CPU lets go of, kept for its next step instead of handed back to the system.

Left alone, glibc returns tensors of more than 32 MiB when they are freed, and what is free at the end of its heap. Each
step then gets the same pages anew, one by one and each filled with zeros: of a FrameFusionMoE step (ViT-B/32, 7 videos
of 12 frames) that was 0.2 to 0.7 million pages and 3 to 11 % of its CPU seconds. Other allocators are left as they are.

In a thread that is not the first of its process, as Ray's trials are, glibc keeps little of tensors above some MiB: a
thread's memory comes in heaps of 64 MiB that it hands back whole, unless MALLOC_ARENA_MAX=1 is set before the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# mallopt(3): parameters, and what they are here and otherwise. Larger than 1 GiB is handed back at once even here.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGE = -1, 1 << 30
_MIB = 1 << 20
_USUAL = {_MMAP_THRESHOLD: 32 * _MIB, _TRIM_THRESHOLD: 64 * _MIB}  # what glibc arrives at when it sees large tensors


@contextmanager
def retain_freed_memory(device: torch.device, is_kept: bool = True) -> Iterator[None]:
    """Inside, this process keeps freed memory where it computes on a CPU; at the end the system gets it.

    Args:
        device: that computes; a GPU's memory is torch's to keep.
        is_kept: False: as without this, for comparisons.
    """
    if device.type != "cpu":
        yield
        return
    _set({_MMAP_THRESHOLD: _LARGE, _TRIM_THRESHOLD: _NEVER} if is_kept else _USUAL)
    try:
        yield
    finally:
        _set(_USUAL)
        trim()


def trim() -> None:
    """Hand what was freed back to the system."""
    if (call := _function("malloc_trim")) is not None:
        call(0)


def _set(values: dict[int, int]) -> None:
    if _function("malloc_trim") is not None and (call := _function("mallopt")) is not None:  # glibc has both
        for parameter, value in values.items():
            call(parameter, value)


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    """Of the C library; None where it has no such function."""
    return getattr(ctypes.CDLL(None), name, None)
