"""Convolutional stem that replaces the patch convolution of a small ViT (Xiao et al., arXiv:2106.14881).

Shapes: G frames, S side of a frame in pixels, D width of the tower.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn


class ConvStem(nn.Sequential):
    """Convolutions of stride 2 with ReLU in between: (G, 3, S, S) -> (G, D, S / 2^n, S / 2^n) for n convolutions.

    The stem has the attributes of the patch convolution that it replaces. `tower_macs`, which counts a tower's
    multiply-adds, reads `weight`. So it omits the first n - 1 convolutions, as for the stems of timm.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        widths = [3, *channels, width]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1), nn.ReLU()]
        super().__init__(*layers[:-1])
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.kernel_size = (2 ** (len(widths) - 1),) * 2  # pixels of a frame for one token

    @property
    def weight(self) -> Tensor:
        """Return the weight of the last convolution, (D, C, 3, 3)."""
        last = self[-1]
        assert isinstance(last, nn.Conv2d)
        return last.weight
