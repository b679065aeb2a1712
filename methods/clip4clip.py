"""CLIP4Clip: all of CLIP fine-tuned on one task after the other.

Luo et al., "CLIP4Clip: An Empirical Study of CLIP for End to End Video Clip Retrieval",
arXiv:2104.08860, sections 3.2 (similarity headers) and 3.3 (loss); in CTVR (arXiv:2503.10111) with mean pooling the
plain sequential baseline. What CTVR changed: frames are averaged without normalising each, and the batch is small.
Its learning rate is published nowhere: 1e-6 is the default of CTVR's released configuration.

The header tightTransf is left out: it scores every caption with every video by a transformer of its own, so that no
feature of a video can be stored and searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from methods.backbone.clip import Clip
from methods.base import Batch, Change, Method, ParamGroup, unit
from methods.layers.gather import gather
from methods.layers.losses import contrastive
from methods.layers.pooling import mean_pool
from methods.layers.sequence_headers import FrameLSTM, FrameTransformer


@dataclass(frozen=True, kw_only=True)
class Clip4ClipConfig:
    """Tuned by search_spaces/clip4clip.py."""

    lr: float = 1e-6  # both towers
    sim_header: Literal["meanP", "seqLSTM", "seqTransf"] = "meanP"  # what frames pass before they are averaged
    sim_layers: int = 4  # blocks of seqTransf; at most as many as CLIP's text tower has
    lr_head: float = 1e-4  # of seqLSTM and seqTransf; CLIP4Clip's rate of new modules
    frame_norm: Literal["none", "l2"] = "none"
    loss_reduction: Literal["mean", "sum"] = "mean"
    train_scale: bool = True  # learn CLIP's temperature too, clamped to [1, 200]
    mask_same_video: bool = False  # other captions of the same video are no negatives

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr must be >= 0, got {self.lr}. Use lr=0 for the zero-shot model.")
        if self.lr_head < 0:
            raise ValueError(f"lr_head must be >= 0, got {self.lr_head}.")
        if self.sim_layers < 1:
            raise ValueError(f"sim_layers must be >= 1, got {self.sim_layers}. Use sim_header=meanP for none.")


class Clip4Clip(Method):
    """CLIP whose frames are averaged, at will after they have looked at one another; fully fine-tuned."""

    Config = Clip4ClipConfig
    accumulates = "features"
    PRESETS = {
        "paper": {},
        "released": {"method.loss_reduction": "sum", "optim.num_cycles": 1.0, "optim.decay_bias_and_norm": True},
        "original": {"method.frame_norm": "l2"},  # pooling of arXiv:2104.08860
        "seqLSTM": Change({"method.frame_norm": "l2", "method.sim_header": "seqLSTM"}),
        "seqTransf": Change({"method.frame_norm": "l2", "method.sim_header": "seqTransf"}),
        # with optim.lr_scale=50: 2e-4, which suits the small backbone, and 1e-3
        "shapes": {"method.lr": 4e-6, "method.lr_head": 2e-5},
    }

    def __init__(self, config: Clip4ClipConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.header: nn.Module | None = None
        if config.sim_header == "seqLSTM":
            self.header = FrameLSTM(backbone.embed_dim)
        elif config.sim_header == "seqTransf":
            self.header = FrameTransformer(backbone.text, backbone.embed_dim, config.sim_layers)
            self.max_frames = len(self.header.positions)

    def param_groups(self) -> list[ParamGroup]:
        parameters = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
        if self.config.train_scale:
            parameters.append(self.backbone.logit_scale)
        groups = [ParamGroup(name="clip", params=parameters, lr=self.config.lr)]
        if self.header is not None:
            groups.append(ParamGroup(name="header", params=list(self.header.parameters()), lr=self.config.lr_head))
        return groups

    def encode_video(self, frames: Tensor) -> Tensor:
        features = self.backbone.vision(frames)
        if self.header is not None:
            features = self.header(features)
        return mean_pool(features, self.config.frame_norm)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return unit(self.backbone.text(tokens))

    def scale(self) -> Tensor:
        return self.backbone.logit_scale.exp()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        videos = gather(batch.videos) if self.config.mask_same_video else None
        return {"contrastive": contrastive(self.logits(batch), self.config.loss_reduction, videos)}

    def after_step(self) -> None:
        with torch.no_grad():
            self.backbone.logit_scale.clamp_(0.0, math.log(200.0))
