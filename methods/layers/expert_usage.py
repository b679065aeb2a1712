"""Counts how much each expert is used in training, summed in the layers and reported once per batch.

Sums, not means: workers and batches may have different numbers of captions. The training loop averages reported
values over workers, so each worker multiplies its own sum by the number of workers. No communication is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.recompute import is_recomputing
from ctvr.methods.layers.gather import world_size


class UsageCounter(nn.Module):
    """A layer of experts that sums its gates until `usage` reads them. The sums are not part of its state."""

    counted: Tensor | None = None  # (E,) float32

    def count(self, gates: Tensor) -> None:
        """Add the gates (B, E) of training captions, each caption once in a step."""
        if self.training and not is_recomputing():
            sums = gates.detach().sum(dim=0, dtype=torch.float32)
            self.counted = sums if self.counted is None else self.counted + sums


def usage(method: nn.Module) -> dict[str, float | Tensor]:
    """Return the captions of the batch per expert, weighted by their gates: a mean over layers, names from 1.

    Resets the sums. Empty where no layer has counted.
    """
    layers = [module for module in method.modules() if isinstance(module, UsageCounter) and module.counted is not None]
    sums = [layer.counted for layer in layers if layer.counted is not None]
    for layer in layers:
        layer.counted = None
    if not sums:
        return {}
    total = world_size() * torch.stack(sums).mean(dim=0)
    return {f"expert/{number:02d}": each for number, each in enumerate(total.unbind(), start=1)}
