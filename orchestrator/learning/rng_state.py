"""Where the random numbers of this process stand, on the CPU and on its device."""

from __future__ import annotations

import torch
from torch import Tensor


def rng_state(device: torch.device) -> tuple[Tensor, ...]:
    """States of the CPU's generator and, on a GPU, of the device's. Reading them makes no device wait."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def set_rng_state(state: tuple[Tensor, ...], device: torch.device) -> None:
    """Go on from what `rng_state` found."""
    torch.set_rng_state(state[0])
    for own in state[1:]:
        torch.cuda.set_rng_state(own, device)
