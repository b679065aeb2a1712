"""Bottleneck adapters on frozen CLIP: the baseline "Adapter" of TempMe (arXiv:2409.01156, table 2), after
Houlsby et al., arXiv:1902.00751.

The paper does not print the configuration. One adapter per block of both towers, with biases and bottleneck 8, gives
the printed 0.26 M parameters. We chose its position (after the MLP) and its activation (GELU):

    h = MLP(LN2 x);   x = x + h + W_up GELU(W_down h + b_down) + b_up,   W_up and b_up start at zero
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState
from ctvr.methods.base import Capabilities
from ctvr.methods.families.tempme_family import PAPER, RELEASED, SHAPES, Adaptation, AdaptedClip, AdaptedConfig
from ctvr.methods.settings import require, setting

Placement = Literal["after_mlp", "beside_mlp", "after_attention"]


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(AdaptedConfig):
    """Settings of Adapter, with ranges in search_spaces/."""

    bottleneck: int = setting(8, doc="hidden width of an adapter", unpublished=True)
    placement: Placement = setting("after_mlp", doc="position of the adapter in a block", unpublished=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "bottleneck")


class Bottleneck(nn.Module):
    """Bottleneck MLP: x (..., D) -> W_up GELU(W_down x + b_down) + b_up, where W_up and b_up start at zero."""

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, bottleneck), nn.Linear(bottleneck, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.gelu(self.down(x)))


class Bottlenecks(Adaptation):
    """Bottleneck adapters of both towers, one per block."""

    def __init__(self, backbone: Clip, bottleneck: int, placement: Placement) -> None:
        super().__init__(backbone)
        self.placement = placement
        self.vision = nn.ModuleList(Bottleneck(backbone.vision.width, bottleneck) for _ in range(self.depths[0]))
        self.text = nn.ModuleList(Bottleneck(backbone.text.width, bottleneck) for _ in range(self.depths[1]))

    def vision_seams(self, backbone: Clip) -> list[BlockSeams]:
        return [self._seams(module) for module in self.vision]  # type: ignore[arg-type]

    def text_seams(self, backbone: Clip) -> list[BlockSeams]:
        return [self._seams(module) for module in self.text]  # type: ignore[arg-type]

    def _seams(self, module: Bottleneck) -> BlockSeams:
        if self.placement == "beside_mlp":
            return BlockSeams(mlp=partial(_add, module, True))
        if self.placement == "after_attention":
            return BlockSeams(beside=partial(_add, module, False))
        return BlockSeams(mlp=partial(_add, module, False))


def _add(module: Bottleneck, parallel: bool, y: Tensor, output: Tensor, state: TokenState) -> Tensor:
    state.extra_macs += output.shape[0] * output.shape[1] * 2 * module.down.weight.numel()
    return output + module(y if parallel else output)


class Adapter(AdaptedClip):
    """Frozen CLIP with a bottleneck adapter in every block of both towers."""

    Config = AdapterConfig
    ON_FEATURES = {"method.lr": 5e-3}
    PRESETS = {"paper": PAPER, "released": RELEASED, "shapes": SHAPES}

    @classmethod
    def capabilities(cls, config: AdaptedConfig) -> Capabilities:
        return replace(super().capabilities(config), backbone_agnostic=True, fits_vectors=config.reducer.name == "none")

    def __init__(self, config: AdapterConfig, backbone: Clip) -> None:
        super().__init__(config, backbone, Bottlenecks(backbone, config.bottleneck, config.placement))
