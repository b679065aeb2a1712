"""Saving and restoring of the RNG state of this process, on the CPU and on its device."""

from __future__ import annotations

import torch
from torch import Tensor


def rng_state(device: torch.device) -> tuple[Tensor, ...]:
    """Return the generator states of the CPU and, on a GPU, of the device; does not synchronize the device."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def set_rng_state(state: tuple[Tensor, ...], device: torch.device) -> None:
    """Restore a state that `rng_state` returned."""
    torch.set_rng_state(state[0])
    for own in state[1:]:
        torch.cuda.set_rng_state(own, device)
