"""LoRA on frozen CLIP: row "LoRA" of TempMe (arXiv:2409.01156, section 3.1), after Hu et al., arXiv:2106.09685.

    [q; k; v] = W y + b + B A y     in every block of both towers, A (r, D), B (3D, r), which starts at zero

The rest of the retriever is in methods/families/tempme_family.py. With method.reducer.name=tempme it is the row
"TempMe". Preset `tome` is the row "ToMe" (Bolya et al., arXiv:2210.09461, section 3), which is also the "+ImgMe" row of
table 8. Every block merges r patches of each frame, between attention and MLP, by the similarity of their keys; in
attention a merged token has a weight equal to its number of patches. `tome_shared` is ours: it merges the same tokens
in all frames of a video, so that token i has the same position in all frames. Preset `evit` is the row "EVIT": blocks
3, 6 and 9 of 12 keep the 70 % of the patches to which the class token attends most, and fuse the others
(layers/reduction/evit.py). Presets `sta`, `diffrate` and `testa` are the rows of these names. The paper does not print
their reduction rates; the defaults reproduce its multiply-adds and, where it prints them, its token counts. The 0.59 M
parameters of TESTA include LoRA on four additional attentions over time, and four gates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Capabilities, Override, Recipe
from ctvr.methods.families.tempme_family import PAPER, RELEASED, SHAPES, AdaptedClip, AdaptedConfig, JointLoRA
from ctvr.methods.settings import require, setting

# ToMe is not trained: its README patches a trained ViT. Untrained LoRA leaves CLIP unchanged.
TOME = Recipe(
    "facebookresearch/ToMe (commit not recorded)",
    {
        "method.reducer.name": ("tome", "tome/patch"),
        "method.reducer.proportional": (True, "README: prop_attn for supervised models"),
        "optim.epochs": (0, "README: off the shelf"),
    },
    (
        "r of the README (13 and 16 of 197 tokens): here 2 of ViT-B/32's 50, 10 of B/16's",
        "training is that of DeiT and MAE, for classes",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LoraConfig(AdaptedConfig):
    """Settings of LoRA, with ranges in search_spaces/; defaults are the paper's."""

    ROW_UNPUBLISHED = {
        "sta": ("method.reducer.r", *AdaptedConfig.UNPUBLISHED),
        "testa": (
            *("method.reducer.r", "method.reducer.r_frames", "method.reducer.stages", "method.reducer.temporal_rank"),
            *AdaptedConfig.UNPUBLISHED,
        ),
    }

    rank: int = setting(8, doc="rank r of LoRA")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "rank")


class Lora(AdaptedClip):
    """Frozen CLIP with LoRA on the attention of both towers."""

    Config = LoraConfig
    ON_FEATURES = {"method.lr": 5e-3}
    PRESETS = {
        "paper": PAPER,
        "released": RELEASED,
        "shapes": SHAPES,
        "tome": Override(
            {"method.reducer.name": "tome"}
        ),  # the row `tome`; r=None: the paper's 2 (ViT-B/32), 10 (B/16)
        "tome-original": TOME,
        "evit": Override({"method.reducer.name": "evit"}),  # the rows `evit`, `sta`, `diffrate`, `testa`
        "sta": Override({"method.reducer.name": "sta"}),
        "diffrate": Override({"method.reducer.name": "diffrate"}),
        # the first task searches rates for the 36.8 GMACs of table 1 (ViT-B/32, 12 frames), and trains only the rates
        "diffrate-search": Override({"method.reducer.name": "diffrate", "method.reducer.search_macs": 3.07}),
        "testa": Override({"method.reducer.name": "testa"}),
    }

    @classmethod
    def capabilities(cls, config: AdaptedConfig) -> Capabilities:
        return replace(super().capabilities(config), backbone_agnostic=True, fits_vectors=config.reducer.name == "none")

    def __init__(self, config: LoraConfig, backbone: Clip) -> None:
        super().__init__(config, backbone, JointLoRA(backbone, config.rank))
