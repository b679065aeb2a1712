"""Heads: small trained maps of features, which frozen towers compute or which are imported.

x is the unit vector of a video (mean of its frames) or of a caption. P is the identity and c = 0, except for captions
that have a different width than videos: then P and c are the ridge map of backbone/vectors.py. The three heads compute

    head_linear     (x - c) P + x D + b                       with a full matrix D
    head_low_rank   (x - c) P + (x A) B + b                   with `rank` columns of A
    head_mlp        (x - c) P + W_2 gelu(W_1 x + b_1) + b

P and c are not trained. The trained terms are initially zero, so weight decay pulls a head to its initial map. `side`
selects the towers that get a head. With side=queries, features of videos never change, so a stored index remains valid.
The loss is the symmetric contrastive loss. Maps of queries only are common practice for indexes that cannot be computed
again (llama_index, raglite). No paper defines them, so we chose learning rates and widths.

Shapes: B videos or captions, T frames, L text length, d width of a video, d' width of a caption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.vectors import CaptionVectors, VideoVectors
from ctvr.methods.base import Capabilities, Method, ParamGroup, l2_normalize
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.temperature import ScaleConfig, bound_scale, set_scale
from ctvr.methods.settings import require, setting

Side = Literal["queries", "videos", "both"]


@dataclass(frozen=True, kw_only=True)
class HeadConfig(ScaleConfig):
    """Settings that all heads share."""

    UNPUBLISHED = ("method.lr", "method.side")

    side: Side = setting(
        "queries",
        doc="towers with a head: queries (captions), videos or both; with queries, stored features of videos stay "
        "valid",
    )
    lr: float = setting(1e-3, doc="learning rate of the heads and the temperature", part="recipe")
    frame_norm: Literal["none", "l2"] = setting("none", doc="normalization of each frame's feature before the mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "lr", hint="Use 0 to keep the initial map.")


class HeadMap(nn.Module):
    """Base class of maps (x - c) P + f(x) + b, with f = 0 and b = 0 initially; a subclass defines f."""

    start: Tensor  # P (d_in, d_out)
    center: Tensor  # c (d_in,)

    def __init__(self, start: Tensor, center: Tensor, config: Any) -> None:
        """Store P = `start` (d_in, d_out) and c = `center` (d_in,); `config` are the settings of the head."""
        super().__init__()
        self.register_buffer("start", start.detach().clone())
        self.register_buffer("center", center.detach().clone())
        self.bias = nn.Parameter(torch.zeros(start.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.center) @ self.start + self.addition(x) + self.bias

    def addition(self, x: Tensor) -> Tensor:
        """Compute f(x), (B, d_in) -> (B, d_out)."""
        raise NotImplementedError


class FixedMap(HeadMap):
    """Untrained map (x - c) P, for a tower without a head."""

    def __init__(self, start: Tensor, center: Tensor, config: HeadConfig) -> None:
        super().__init__(start, center, config)
        self.bias.requires_grad_(False)

    def addition(self, x: Tensor) -> Tensor:
        return x.new_zeros(())


class Linear(HeadMap):
    def __init__(self, start: Tensor, center: Tensor, config: HeadConfig) -> None:
        super().__init__(start, center, config)
        self.weight = nn.Parameter(torch.zeros_like(start))

    def addition(self, x: Tensor) -> Tensor:
        return x @ self.weight


class LowRank(HeadMap):
    def __init__(self, start: Tensor, center: Tensor, config: HeadLowRankConfig) -> None:
        super().__init__(start, center, config)
        d_in, d_out = start.shape
        self.down = nn.Parameter(torch.randn(d_in, config.rank) * d_in**-0.5)
        self.up = nn.Parameter(torch.zeros(config.rank, d_out))

    def addition(self, x: Tensor) -> Tensor:
        return x @ self.down @ self.up


class Mlp(HeadMap):
    def __init__(self, start: Tensor, center: Tensor, config: HeadMlpConfig) -> None:
        super().__init__(start, center, config)
        d_in, d_out = start.shape
        self.inner = nn.Linear(d_in, config.hidden)
        self.outer = nn.Parameter(torch.zeros(config.hidden, d_out))

    def addition(self, x: Tensor) -> Tensor:
        return F.gelu(self.inner(x)) @ self.outer


class Head(Method):
    """Base class of methods with frozen towers, and a map of class `kind` after each tower that `side` selects."""

    Config = HeadConfig
    OPTIMIZER = {"optim.weight_decay": 0.0}
    kind: type[HeadMap]
    config: HeadConfig

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        return Capabilities(
            backbone_agnostic=True,
            uses_all_parameters=True,
            accumulation="features",
            text_is_frozen=config.side == "videos",
            videos_are_frozen=config.side == "queries",
        )

    def __init__(self, config: HeadConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)
        set_scale(backbone, config)
        sides: dict[Side, tuple[Tensor, Tensor]] = dict(zip(("queries", "videos"), initial_maps(backbone), strict=True))
        self.maps = nn.ModuleDict(
            {
                side: (self.kind if config.side in (side, "both") else FixedMap)(*start, config)
                for side, start in sides.items()
            }
        )

    def param_groups(self) -> list[ParamGroup]:
        params = [p for p in self.maps.parameters() if p.requires_grad]
        if self.config.train_scale:
            params.append(self.backbone.logit_scale)
        return [ParamGroup(name="head", params=params, lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        found = mean_pool(video_vectors(self.backbone, frames), self.config.frame_norm)
        return found if self.config.side == "queries" else l2_normalize(self.maps["videos"](found))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.maps["queries"](caption_vectors(self.backbone, tokens)))

    def after_step(self) -> None:
        bound_scale(self.backbone, self.config)


def initial_maps(backbone: Clip) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return P (d_in, d_out) and c (d_in,) of two initial maps: of captions, then of videos."""
    text, eye = backbone.text, torch.eye(backbone.embed_dim)
    plain = eye, torch.zeros(len(eye))
    return (text.start() if isinstance(text, CaptionVectors) else plain), plain


def caption_vectors(backbone: Clip, tokens: Tensor) -> Tensor:
    """Return the unit vectors of captions before a head, (B, L) -> (B, d'), imported or from the frozen tower."""
    text = backbone.text
    with torch.no_grad():
        return l2_normalize(text.vectors(tokens) if isinstance(text, CaptionVectors) else text(tokens))


def video_vectors(backbone: Clip, frames: Tensor) -> Tensor:
    """Return the features of frames before a head, (B, T, ...) -> (B, T, d), imported or from the frozen tower."""
    vision = backbone.vision
    with torch.no_grad():
        return vision.vectors(frames) if isinstance(vision, VideoVectors) else vision(frames)


class HeadLinear(Head):
    """Method with a linear head after each selected tower."""

    kind = Linear


@dataclass(frozen=True, kw_only=True)
class HeadLowRankConfig(HeadConfig):
    """Settings of the low-rank head."""

    rank: int = setting(32, doc="rank of the head: columns of A and rows of B", unpublished=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "rank")


class HeadLowRank(Head):
    """Method with a low-rank head after each selected tower."""

    Config = HeadLowRankConfig
    kind = LowRank


@dataclass(frozen=True, kw_only=True)
class HeadMlpConfig(HeadConfig):
    """Settings of the MLP head."""

    hidden: int = setting(512, doc="hidden width of the MLP", unpublished=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "hidden")


class HeadMlp(Head):
    """Method with an MLP head of one hidden layer after each selected tower."""

    Config = HeadMlpConfig
    kind = Mlp
