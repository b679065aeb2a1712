"""Spilling of features that exceed the memory budget to unnamed temporary files.

A task-conditioned method has features (Q, ...) of all captions for every task, and all of them are ranked together.
They are read back on demand, bit-identical, through a memory map whose pages the system may drop.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)
MEMORY_BUDGET = 2**28  # bytes kept in memory


def spill_features(features: Iterable[Tensor], held: int) -> list[Tensor]:
    """Return equal tensors (CPU, float32); all after the first `held` bytes are memory-mapped from files."""
    found, room = list[Tensor](), held
    for each in features:
        room -= each.nbytes
        found.append(each if room >= 0 else _in_file(each))
    return found


def _in_file(tensor: Tensor) -> Tensor:
    """Return the tensor memory-mapped from an unnamed file, or the tensor itself if the file cannot be written."""
    try:
        with tempfile.TemporaryFile(prefix="ctvr-") as file:
            tensor.contiguous().numpy().tofile(file)
            file.flush()
            return torch.from_numpy(np.memmap(file, np.float32, mode="c", shape=tuple(tensor.shape)))
    except OSError as error:
        log.warning(
            "%s: caption features are kept in memory, because a file could not be written (%s)",
            tempfile.gettempdir(),
            error,
        )
        return tensor
