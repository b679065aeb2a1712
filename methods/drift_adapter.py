"""Drift-Adapter: a small map from the new to the old model's caption space, fitted after each task.

Vejendla, "Drift-Adapter: A Practical Approach to Near Zero-Downtime Embedding Model Upgrades in Vector Databases",
EMNLP 2025, arXiv:2509.23471, over any retriever that encodes a caption as one vector. The paper maps between two text
models once. Here a map is fitted after each task, and the maps are chained (methods/families/compensation.py). x and y
are unit features of a task's training captions by the model after and before the task, X and Y the matrices of these:

    procrustes  g(x) = x R,                              R'R = I, of the SVD of X'Y + ridge I
    low_rank    g(x) = x + x U V' + t,                   U, V of `rank` columns
    mlp         g(x) = x + GELU(x W1 + b1) W2 + b2,      W1 of `hidden` columns
    diagonal    g(x) * s,                                s by least squares after the fit
    center      g(x - mean X) + mean Y

The last two are options of the first three. Low rank and MLP minimize mean |g(x) - y|^2 and start as the identity. Only
the paper's abstract was available, and the authors' code was not found. Maps, counts and the share of pairs come from
an independent reproduction (batuhanzorbeyzengin/rebasis), which did not reach the printed recall. We chose optimizer,
learning rate, steps and weight decay. We added the identity in `low_rank`, and the ridge, since a task may have fewer
captions than a feature has dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.base import Batch, Override
from ctvr.methods.families.compensation import MapLink, QueryCompensation
from ctvr.methods.layers.feature_maps import Weights, diagonal_scale, fit_by_gradient, procrustes, start_weights
from ctvr.methods.settings import group, require, setting


@dataclass(frozen=True, kw_only=True)
class ProcrustesConfig:
    """Settings of a map g that is orthogonal and fitted in closed form."""

    name: Literal["procrustes"] = "procrustes"
    diagonal: bool = setting(False, doc="whether to scale each dimension after the map", later=True)
    ridge: float = setting(
        1.0,
        doc="weight of the penalty on the distance of the map from the identity, relative to the number of pairs",
        unpublished=True,
        later=True,
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "ridge", hint="Use 0 for the plain least squares.")

    def start(self, width: int) -> Weights:
        return {"matrix": torch.eye(width)}

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        return x @ w["matrix"]

    def fit(self, x: Tensor, y: Tensor) -> Weights:
        return {"matrix": procrustes(x, y, self.ridge).float()}


@dataclass(frozen=True, kw_only=True)
class DescentConfig:
    """Base class of maps g that start as the identity and are fitted by gradient descent."""

    diagonal: bool = setting(True, doc="whether to scale each dimension after the map", later=True)
    lr: float = setting(1e-3, doc="learning rate of the map (our choice)", later=True, part="recipe")
    steps: int = setting(
        500, doc="number of training steps of the map, each on all pairs (our choice)", later=True, part="recipe"
    )
    decay: float = setting(1e-4, doc="weight decay of the map (our choice)", later=True, part="loss")

    def __post_init__(self) -> None:
        require(self, "> 0", "lr", hint="Use <name>=procrustes for a map without steps.")
        require(self, ">= 1", "steps")
        require(self, ">= 0", "decay", hint="Use 0 for none.")

    def start(self, width: int) -> Weights:
        raise NotImplementedError

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        raise NotImplementedError

    def fit(self, x: Tensor, y: Tensor) -> Weights:
        start = {name: value.to(x.device) for name, value in self.start(x.shape[-1]).items()}
        return fit_by_gradient(start, self._error, x, y, lr=self.lr, steps=self.steps, decay=self.decay)

    def _error(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Compute mean |g(x) - y|^2, a scalar, for the map g with weights `w`."""
        return (self.apply(w, x) - y).square().sum(dim=-1).mean()


@dataclass(frozen=True, kw_only=True)
class LowRankConfig(DescentConfig):
    """Settings of a map g: the identity plus a low-rank affine map."""

    name: Literal["low_rank"] = "low_rank"
    rank: int = setting(64, doc="number of columns of U and V, at most the width of a feature", later=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "rank")

    def start(self, width: int) -> Weights:
        rank = min(self.rank, width)
        down = start_weights("down", (width, rank), width**-0.5)
        return {"down": down, "up": torch.zeros(rank, width), "shift": torch.zeros(width)}

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        return x + x @ w["down"] @ w["up"] + w["shift"]


@dataclass(frozen=True, kw_only=True)
class MlpConfig(DescentConfig):
    """Settings of a map g: the identity plus an MLP with one hidden layer and GELU."""

    name: Literal["mlp"] = "mlp"
    hidden: int = setting(256, doc="hidden width of the MLP", later=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 1", "hidden")

    def start(self, width: int) -> Weights:
        inner = start_weights("inner", (width, self.hidden), width**-0.5)
        outer = {"outer": torch.zeros(self.hidden, width), "outer_bias": torch.zeros(width)}
        return {"inner": inner, "inner_bias": torch.zeros(self.hidden), **outer}

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        return x + F.gelu(x @ w["inner"] + w["inner_bias"]) @ w["outer"] + w["outer_bias"]


MAPS: dict[str, type] = {"procrustes": ProcrustesConfig, "low_rank": LowRankConfig, "mlp": MlpConfig}


@dataclass(frozen=True, kw_only=True)
class DriftAdapterConfig:
    """Settings of Drift-Adapter, with ranges in search_spaces/."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    map: ProcrustesConfig | LowRankConfig | MlpConfig = group(
        MAPS, "procrustes", doc="map from the new to the old model's caption space", later=True
    )
    center: bool = setting(
        False, doc="whether to subtract the mean caption feature of each model before the map", later=True
    )
    pairs: int = setting(20_000, doc="maximum number of captions to which a map is fitted", later=True)
    query_weight: float = setting(
        0.0,
        doc="weight of the distillation of captions, as in QDC; Drift-Adapter's paper does not use it",
        later=True,
        part="loss",
    )
    video_weight: float = setting(
        0.0,
        doc="weight of the distillation of videos, as in QDC; Drift-Adapter's paper does not use it",
        later=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "query_weight", "video_weight", hint="Use 0 to omit the term.")
        require(self, ">= 1", "pairs")


class Adapter(MapLink):
    """Link of R maps g with the options `diagonal` and `center`; R > 1 only if captions are encoded for each task."""

    scale: Tensor  # (R, d)
    mean_new: Tensor  # (R, d)
    mean_old: Tensor  # (R, d)

    def __init__(self, config: DriftAdapterConfig, width: int, rows: int) -> None:
        super().__init__(config.map, width, rows, config.pairs)
        self.center, self.diagonal = config.center, config.map.diagonal
        for name, number in (("scale", 1.0), ("mean_new", 0.0), ("mean_old", 0.0)):
            self.register_buffer(name, torch.full((rows, width), number))

    def fit_map(self, row: int, x: Tensor, y: Tensor) -> None:
        if self.center:
            self.mean_new[row], self.mean_old[row] = x.mean(dim=0), y.mean(dim=0)
            x, y = x - self.mean_new[row], y - self.mean_old[row]
        super().fit_map(row, x, y)
        if self.diagonal:
            self.scale[row] = diagonal_scale(super().forward(x, row), y).float()

    def forward(self, x: Tensor, row: int) -> Tensor:
        return super().forward(x - self.mean_new[row], row) * self.scale[row] + self.mean_old[row]


class DriftAdapter(QueryCompensation):
    """Strategy that maps a retriever's captions to the space of the model that encoded the searched videos."""

    Config = DriftAdapterConfig
    PRESETS = {
        "paper": {},
        "low-rank": Override({"method.map.name": "low_rank"}),
        "mlp": Override({"method.map.name": "mlp"}),
        "shapes": {"base.lr": 4e-6},  # as for clip4clip, with optim.lr_scale=50, for the small backbone
    }
    config: DriftAdapterConfig

    def make_link(self, width: int, rows: int) -> Adapter:
        return Adapter(self.config, width, rows)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self.teacher is None:  # runs with different weights can share the first task, which does not read them
            return super().losses(batch)
        return self.distilled(batch, self.config.query_weight, self.config.video_weight)
