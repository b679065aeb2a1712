"""How much each expert counts in training, summed where it happens and told once for each batch.

Sums, not means: workers and batches need not have equally many captions. No worker is asked for it: the loop averages
what is told over workers, so that each tells its own sum as often as there are workers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import is_recomputing
from ctvr.methods.layers.gather import world_size


class UsageCounter(nn.Module):
    """A layer of experts that sums its gates until `usage` reads them. They are no part of its state."""

    counted: Tensor | None = None  # (E,) float32

    def count(self, gates: Tensor) -> None:
        """Add the gates (B, E) of captions that are trained on, each caption once in a step."""
        if self.training and not is_recomputing():
            sums = gates.detach().sum(dim=0, dtype=torch.float32)
            self.counted = sums if self.counted is None else self.counted + sums


def usage(method: nn.Module) -> dict[str, float | Tensor]:
    """Captions of the batch that each expert has had, by its weight in their gates: a mean over layers, 1-based names.

    What is told is forgotten. Empty where no layer has counted.
    """
    layers = [module for module in method.modules() if isinstance(module, UsageCounter) and module.counted is not None]
    sums = [layer.counted for layer in layers if layer.counted is not None]
    for layer in layers:
        layer.counted = None
    if not sums:
        return {}
    total = world_size() * torch.stack(sums).mean(dim=0)
    return {f"expert/{number:02d}": each for number, each in enumerate(total.unbind(), start=1)}
