"""Features that are too many for memory, in a file of the system's temporary folder that nobody else sees.

A method that prompts by task has features (Q, ...) of all captions for every task, and all of them are ranked together.
They are read back where they are asked for, bit for bit, through a memory map whose pages the system may drop.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)
MEMORY_BUDGET = 2**28  # bytes that are held in memory


def spilled(features: Iterable[Tensor], held: int) -> list[Tensor]:
    """The same tensors (CPU, float32); what is behind the first `held` bytes lies in files."""
    found, room = list[Tensor](), held
    for each in features:
        room -= each.nbytes
        found.append(each if room >= 0 else _in_file(each))
    return found


def _in_file(tensor: Tensor) -> Tensor:
    """The tensor in a file without a name, which ends with it; itself where there is no room for one."""
    try:
        with tempfile.TemporaryFile(prefix="ctvr-") as file:
            tensor.contiguous().numpy().tofile(file)
            file.flush()
            return torch.from_numpy(np.memmap(file, np.float32, mode="c", shape=tuple(tensor.shape)))
    except OSError as error:
        log.warning("%s: features of captions stay in memory (%s)", tempfile.gettempdir(), error)
        return tensor
