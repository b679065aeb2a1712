"""Deep prompts on frozen CLIP: the baseline "Prompt" of TempMe (arXiv:2409.01156, table 2), which cites MaPLe.

The paper does not print the configuration. The printed 0.08 M parameters and 58.2 GFLOPs result from P = 5 learned
tokens P_l in every block l of both towers, not coupled (the "independent" variant of MaPLe's code, arXiv:2210.03117):

    image:    [class, P_l, patches]        caption:  [start, P_l, words, end]

Each block drops the prompts of the block before and inserts its own. Prompts do not have position embeddings; the
prompts of the first image block pass CLIP's first LayerNorm as in the public code. Words keep CLIP's positions.
A token reducer does not merge prompts. If it joins clips, the joined clip gets one set of prompts per block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ctvr.methods.backbone.clip import BlockSeams, Clip
from ctvr.methods.families.tempme_family import PAPER, RELEASED, SHAPES, Adaptation, AdaptedClip, AdaptedConfig
from ctvr.methods.layers.deep_prompts import drop_prompts, insert_prompts
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class PromptConfig(AdaptedConfig):
    """Settings of Prompt, with ranges in search_spaces/."""

    UNPUBLISHED = ("method.lr", *AdaptedConfig.UNPUBLISHED)

    num_prompts: int = setting(5, doc="number P of prompts per block and tower", unpublished=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "num_prompts", hint="Use method=zero_shot for a model without prompts.")


class Prompts(Adaptation):
    """Learned tokens of every block, initialized from N(0, 0.02^2)."""

    def __init__(self, backbone: Clip, num_prompts: int) -> None:
        super().__init__(backbone)
        self.vision = nn.Parameter(0.02 * torch.randn(self.depths[0], num_prompts, backbone.vision.width))
        self.text = nn.Parameter(0.02 * torch.randn(self.depths[1], num_prompts, backbone.text.width))

    def vision_seams(self, backbone: Clip) -> list[BlockSeams]:
        prompts = [backbone.vision.ln_pre(self.vision[0]), *self.vision[1:]]
        return [BlockSeams(before=insert_prompts(p), after=drop_prompts(len(p))) for p in prompts]

    def text_seams(self, backbone: Clip) -> list[BlockSeams]:
        return [
            BlockSeams(before=insert_prompts(p, caption=True), after=drop_prompts(len(p), caption=True))
            for p in self.text
        ]


class Prompt(AdaptedClip):
    """Frozen CLIP with separate prompts in every block."""

    Config = PromptConfig
    PRESETS = {"paper": PAPER, "released": RELEASED, "shapes": SHAPES}

    def __init__(self, config: PromptConfig, backbone: Clip) -> None:
        super().__init__(config, backbone, Prompts(backbone, config.num_prompts))
