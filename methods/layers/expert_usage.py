"""Counters of how much each expert is used in training: layers sum their gates, and `usage` reports the sums per batch.

`usage` reports sums, not means, because workers and batches may have different numbers of captions. The training loop
averages reported values over workers. So each worker multiplies its sum by the number of workers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctvr.methods.layers.gather import world_size


class UsageCounter(nn.Module):
    """Base class of a layer of experts that sums gates until `usage` reads the sums; its state dict omits them."""

    counted: Tensor | None = None  # (E,) float32 sums of gates

    def count(self, sums: Tensor) -> None:
        """Add to the usage of each expert its gates, summed over training captions: `sums` (E,).

        The caller counts each caption once a step."""
        self.counted = sums if self.counted is None else self.counted + sums


def usage(method: nn.Module) -> dict[str, float | Tensor]:
    """Return the sum of each expert's gates over the captions of a batch, averaged over layers, and reset the sums.

    Keys are `expert/01`, `expert/02` and so on. The result is empty if no layer has counted.
    """
    layers = [module for module in method.modules() if isinstance(module, UsageCounter) and module.counted is not None]
    sums = [layer.counted for layer in layers if layer.counted is not None]
    for layer in layers:
        layer.counted = None
    if not sums:
        return {}
    total = world_size() * torch.stack(sums).mean(dim=0)
    return {f"expert/{number:02d}": each for number, each in enumerate(total.unbind(), start=1)}
