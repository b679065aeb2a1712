"""TempMe: temporal token merging (arXiv:2409.01156, ICLR 2025).

Progressive multi-granularity merging in the video tower (section 3.2, figure 3):

    ImgMe  (first blocks):  attention, merge r patches within each frame, MLP
    ClipMe (late blocks):   join f neighboring clips; merge f N (1 - R_C) tokens across them by their features;
                            add clip positions; attention; merge N' (1 - R_I) tokens within a clip by their keys; MLP

    12 frames, ViT-B/32: 12 x 50 tokens -> 12 x 34 after 8 ImgMe blocks -> 6 x 44 -> 3 x 56 -> 1 x 107 -> 1 x 97

N is the number of tokens of a clip (at first a frame), N' that of a joined clip; R_C and R_I are the shares of tokens
that are kept. The steps are in layers/reduction/reducers.py and merge.py, the rest of the retriever in
families/tempme_family.py. Details that the paper does not specify follow the released code. Class tokens are not
merged; all T class tokens are averaged at the end. A merged token is the average of its tokens, weighted by their
numbers of patches. Tokens are matched before positions are added to them. After the first ClipMe block, blocks that do
not join clips merge tokens within clips. Presets cover the ablations of tables 8 to 10 and 15.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Override, ParamGroup
from ctvr.methods.families.tempme_family import (
    PAPER,
    RELEASED,
    SHAPES,
    Adaptation,
    AdaptedClip,
    AdaptedConfig,
    JointLoRA,
)
from ctvr.methods.layers.reduction.config import TRAINED_REDUCERS, ReducerConfig
from ctvr.methods.settings import group, require, setting


@dataclass(frozen=True, kw_only=True)
class TempMeConfig(AdaptedConfig):
    """Settings of TempMe; search_spaces/ has ranges for all of them except the schedule of the reducer."""

    UNPUBLISHED = ("method.train_positions", *AdaptedConfig.UNPUBLISHED)

    reducer: ReducerConfig = group(
        {name: TRAINED_REDUCERS[name] for name in ("tempme", "tome", "none")},
        "tempme",
        doc='token reduction in the vision tower. tome: row "+ToMe" of table 5, with adaptation=full',
    )
    adaptation: Literal["lora", "full", "none"] = setting(
        "lora",
        doc="adaptation of CLIP. lora: LoRA is trained; full: all weights are trained (table 5); none: no weights "
        "are trained",
    )
    rank: int = setting(8, doc="rank of LoRA")
    lr_clip: float = setting(
        1e-6, doc="learning rate of both towers, with adaptation=full (not published)", part="recipe"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "rank")
        require(self, ">= 0", "lr_clip")


_B16 = {"method.reducer.r": 10, "method.reducer.keep_cross": 60, "method.reducer.keep_intra": 80}
_64_FRAMES = {
    "method.reducer.num_frames": 64,
    "method.reducer.clip_groups": (4, 4, 4),
    "data.num_frames": 64,
    "data.max_tokens": 64,
}


class TempMe(AdaptedClip):
    """CLIP with LoRA that merges tokens within frames, then across clips, which grow to the whole video."""

    Config = TempMeConfig
    PRESETS = {
        "paper": PAPER,
        "shapes": SHAPES,
        "paper-b16": {**PAPER, **_B16},
        "paper-actnet": {**PAPER, **_64_FRAMES},
        "released": RELEASED.extended({"method.reducer.positions": ("merging", "tvr/models/module_tome_patch.py")}),
        "full": Override({"method.adaptation": "full", "method.lr": 1e-4}),
        "temporal-only": Override(
            {"method.reducer.r": 0, "method.reducer.keep_cross": 100, "method.reducer.keep_intra": 100}
        ),
        "reduction-only": Override({"method.reducer.join_clips": False}),
        "no-positions": Override({"method.reducer.positions": "none"}),
        "a1-two-steps": Override({"method.reducer.clip_blocks": (8, 9), "method.reducer.clip_groups": (3, 4)}),
        "a1-one-step": Override({"method.reducer.clip_blocks": (8,), "method.reducer.clip_groups": (12,)}),
        "a2-three-clips": Override({"method.reducer.clip_blocks": (8, 9), "method.reducer.clip_groups": (2, 2)}),
        "a2-four-clips": Override({"method.reducer.clip_blocks": (8,), "method.reducer.clip_groups": (3,)}),
        "a3-7-9-11": Override({"method.reducer.clip_blocks": (6, 8, 10), "method.reducer.clip_groups": (2, 2, 3)}),
        "a3-4-7-10": Override({"method.reducer.clip_blocks": (3, 6, 9), "method.reducer.clip_groups": (2, 2, 3)}),
        "a3-1-5-9": Override({"method.reducer.clip_blocks": (0, 4, 8), "method.reducer.clip_groups": (2, 2, 3)}),
    }

    def __init__(self, config: TempMeConfig, backbone: Clip) -> None:
        adaptation = JointLoRA(backbone, config.rank) if config.adaptation == "lora" else Adaptation(backbone)
        super().__init__(config, backbone, adaptation)
        self.full = config.adaptation == "full"
        self.lr_clip = config.lr_clip

    def param_groups(self) -> list[ParamGroup]:
        groups = super().param_groups()
        if self.full:
            towers = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
            groups.append(ParamGroup(name="clip", params=towers, lr=self.lr_clip))
        return groups
