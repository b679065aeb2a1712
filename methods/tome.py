"""ToMe on the frames of a video (Bolya et al., arXiv:2210.09461), with LoRA: row "ToMe" of TempMe (arXiv:2409.01156).

Every block merges r patches of each frame, between attention and MLP, by the similarity of their keys; a merged
token counts in attention for the patches it stands for (ToMe, section 3). It is TempMe's "+ImgMe" row (table 8).
`reducer=tome_shared` is ours: one choice for all frames of a video, so that token i stays the same place in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from methods.backbone.clip import Clip
from methods.families.adapted import PAPER, RELEASED, SHAPES, AdaptedClip, AdaptedConfig, JointLoRA


@dataclass(frozen=True, kw_only=True)
class ToMeConfig(AdaptedConfig):
    """Tuned by search_spaces/tome.py; r=None is the paper's 2 (ViT-B/32) or 10 (ViT-B/16)."""

    reducer: Literal["tome", "tome_shared"] = "tome"
    rank: int = 8  # of LoRA

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank must be >= 1, got {self.rank}.")


class ToMe(AdaptedClip):
    """LoRA, and fewer patches of each frame in every block."""

    Config = ToMeConfig
    PRESETS = {"paper": PAPER, "released": RELEASED, "shapes": SHAPES}

    def __init__(self, config: ToMeConfig, backbone: Clip) -> None:
        super().__init__(config, backbone, JointLoRA(backbone, config.rank))
