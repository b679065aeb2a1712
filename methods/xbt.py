"""XBT: a projection from the new to the old model's caption space, trained on noisy text features after each task.

Jang & Lim, "Towards Cross-modal Backward-compatible Representation Learning for Vision-Language Models", ICCV 2025,
arXiv:2405.14715, over any retriever that encodes a caption as one vector. h and y are unit features of texts by the
model after and before a task, and p is the projection:

    h' = unit(h + e),  e ~ N(0, noise^2 I), sampled again in each step
    L = mean (1 - cos(p(h'), y)),   or mean |p(h') - y|^2
    linear  p(h) = h W + b        mlp  p(h) = h + GELU(h W1 + b1) W2 + b2, hidden width d

Only texts are read. The noise makes p valid also near captions, where the features of videos are. The projections of
tasks are chained (methods/families/compensation.py). `sentences` adds random sentences to the captions of the task;
these do not need data of an earlier task.

This is our interpretation of the abstract and of a later paper's description (noise, text alone, LoRA on pairs
afterwards). The paper replaces one CLIP by another; here the model after each task replaces the model before it. We
chose the kind of p, the loss, the size of the noise, optimizer and steps. The paper's second stage, LoRA of the new
model on pairs, is omitted, because in a stream the next task trains the model itself. The authors' code was not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.base import Override, l2_normalize
from ctvr.methods.families.compensation import MapLink, QueryCompensation
from ctvr.methods.layers.feature_maps import Weights, fit_by_gradient, start_weights
from ctvr.methods.layers.losses.distillation import backbone_of
from ctvr.methods.settings import require, setting
from ctvr.methods.vr_lwf import draw_sentences

_AT_ONCE = 250  # number of sentences that are encoded together


@dataclass(frozen=True, kw_only=True)
class XBTConfig:
    """Settings of XBT, with ranges in search_spaces/."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    projection: Literal["linear", "mlp"] = setting(
        "linear", doc="form of the projection p", unpublished=True, later=True
    )
    noise: float = setting(
        0.02,
        doc="standard deviation of the noise that is added to each dimension of a normalized feature",
        unpublished=True,
        later=True,
    )
    loss: Literal["cosine", "squared"] = setting(
        "cosine",
        doc="distance between the mapped and the old feature, which is minimized",
        unpublished=True,
        later=True,
    )
    sentences: int = setting(
        0,
        doc="number of random sentences to which the projection is fitted, in addition to the captions of a task",
        unpublished=True,
        later=True,
    )
    pairs: int = setting(
        20_000, doc="maximum number of texts to which a projection is fitted", unpublished=True, later=True
    )
    lr: float = setting(1e-3, doc="learning rate of the projection", unpublished=True, later=True, part="recipe")
    steps: int = setting(
        500,
        doc="number of training steps of the projection, each on all texts",
        unpublished=True,
        later=True,
        part="recipe",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "noise", "sentences", hint="Use 0 for none.")
        require(self, ">= 1", "pairs", "steps")
        require(self, "> 0", "lr", hint="Use <lr>=0.001.")


class Projection:
    """Projection p and its loss, a `FeatureMap`."""

    def __init__(self, config: XBTConfig) -> None:
        self.config = config

    def start(self, width: int) -> Weights:
        if self.config.projection == "linear":
            return {"matrix": torch.eye(width), "shift": torch.zeros(width)}
        inner = {"inner": start_weights("inner", (width, width), width**-0.5), "inner_bias": torch.zeros(width)}
        return {**inner, "outer": torch.zeros(width, width), "outer_bias": torch.zeros(width)}

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        if self.config.projection == "linear":
            return x @ w["matrix"] + w["shift"]
        return x + F.gelu(x @ w["inner"] + w["inner_bias"]) @ w["outer"] + w["outer_bias"]

    def fit(self, x: Tensor, y: Tensor) -> Weights:
        config, drawn = self.config, torch.Generator(x.device).manual_seed(0)

        def under_noise(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            noise = torch.randn(x.shape, generator=drawn, device=x.device)
            return self.distance(w, l2_normalize(x + config.noise * noise), y)

        start = {name: value.to(x.device) for name, value in self.start(x.shape[-1]).items()}
        loss = under_noise if config.noise else self.distance
        return fit_by_gradient(start, loss, x, y, lr=config.lr, steps=config.steps, decay=0.0, select=self.distance)

    def distance(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Compute L without noise, a scalar, of the projection with weights `w` over texts x and y, (n, d) each."""
        found = self.apply(w, x)
        if self.config.loss == "cosine":
            return (1 - F.cosine_similarity(found, y, dim=-1)).mean()
        return (found - y).square().sum(dim=-1).mean()


class XBT(QueryCompensation):
    """Strategy that projects a retriever's captions to the space of the model that encoded the searched videos."""

    Config = XBTConfig
    PRESETS = {
        "paper": {},
        "no-noise": Override({"method.noise": 0.0}),
        "sentences": Override({"method.sentences": 2000}),
        "shapes": {"base.lr": 4e-6},  # as for clip4clip, with optim.lr_scale=50, for the small backbone
    }
    config: XBTConfig

    def make_link(self, width: int, rows: int) -> MapLink:
        return MapLink(Projection(self.config), width, rows, self.config.pairs)

    def fit_link(self, link: Any, captions: Sequence[Tensor]) -> None:
        texts = list(captions)
        if self.config.sentences and texts:
            clip = backbone_of(self.base)
            length = min(10, clip.tokenize([""]).shape[1] - 2)
            drawn = draw_sentences(clip, self.config.sentences, length).to(texts[0].device)
            texts += drawn.split(_AT_ONCE)
        super().fit_link(link, texts)
