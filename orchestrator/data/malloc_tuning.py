"""Tuning of glibc malloc, so that freed training memory is reused instead of returned to the system.

By default, glibc returns freed tensors of more than 32 MiB, and free memory at the end of its heap. Each step then
faults in the same pages one by one, each filled with zeros: for a FrameFusionMoE step (ViT-B/32, 7 videos of 12 frames)
0.2 to 0.7 million pages and 3 to 11 % of the CPU time. Other allocators are not changed.

In threads other than the main one, such as Ray's trials, glibc keeps little of tensors above some MiB: the memory of
such a thread comes in heaps of 64 MiB, which are returned whole, unless MALLOC_ARENA_MAX=1 is set before the start.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# mallopt(3): parameters and values. Blocks larger than 1 GiB are returned at once even with this tuning
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGE = -1, 1 << 30
_MIB = 1 << 20
_USUAL = {_MMAP_THRESHOLD: 32 * _MIB, _TRIM_THRESHOLD: 64 * _MIB}  # glibc's dynamic values after large tensors


@contextmanager
def retain_freed_memory(device: torch.device, is_kept: bool = True) -> Iterator[None]:
    """Keep freed memory of this process inside the context if it computes on a CPU; release it at the end.

    Args:
        device: device of the training; torch manages a GPU's memory itself.
        is_kept: False behaves as without this context, for comparisons.
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
    """Return freed memory to the system."""
    if (call := _function("malloc_trim")) is not None:
        call(0)


def _set(values: dict[int, int]) -> None:
    if _function("malloc_trim") is not None and (call := _function("mallopt")) is not None:  # glibc has both
        for parameter, value in values.items():
            call(parameter, value)


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    """Return a function of the C library; None if it does not have it."""
    return getattr(ctypes.CDLL(None), name, None)
