"""Lambda-orthogonality: a nearly orthogonal map from the new to the old model's caption space, fitted after each task.

Ricci, Biondi, Pernici, Patras, Del Bimbo, NeurIPS 2025, arXiv:2509.16664, over any retriever that encodes a caption as
one vector. x and y are unit features of a task's training captions by the model after and before the task. The paper's
backward map B takes x to the old space. It should fit y and nearly keep the geometry of the new model:

    strict   B(x) = x exp(P),  P skew
    relaxed  B(x) = x W + b,   with the penalty sigmoid(sharpness (e - lambda)) e,  e = |W W' - I|_F      (eq. 6)
    L = distance_weight mean |B(x) - y|^2 + contrastive_weight contr(B(x), y) + the penalty      (eq. 2)

e and lambda are distances that grow with the root of the width d, so the setting is lambda / sqrt(d). The paper's 12 at
d = 512 is for two models that were trained separately. A task changes one model much less: 500 steps from W = I end far
below that lambda, and B is then an unconstrained affine map. `task/orthogonality_gap` and
`task/orthogonality_penalty` report e and the penalty of each fit. Tables mark a row whose penalty never had an effect.

The maps of tasks are chained (methods/families/compensation.py). Only a translation of the paper was available, not the
authors' code. The paper fits a map once, between two image models, by Adam with learning rate 0.001; its sharpness
(alpha) and weights are not known to us. Its contrastive loss is supervised by classes, and also trains a forward map F,
which rewrites stored features. Here captions have no class labels, so the contrastive loss of pairs is used. Two parts
are omitted: F, because a stored gallery must not be rewritten here, and the order in which the paper encodes items
again (by the distance to the mean of a class).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from ctvr.methods.base import Override, l2_normalize
from ctvr.methods.families.compensation import MapLink, QueryCompensation
from ctvr.methods.layers.feature_maps import Weights, fit_by_gradient, orthogonality_penalty, rotation
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.settings import SettingError, group, require, setting


@dataclass(frozen=True, kw_only=True)
class BackwardConfig:
    """Base class of the settings of a map B: its loss and its optimization."""

    distance_weight: float = setting(
        1.0, doc="weight of the squared distance from the old features, eq. 2", unpublished=True, later=True
    )
    contrastive_weight: float = setting(
        0.0, doc="weight of the contrastive loss of pairs; 0: no such loss", unpublished=True, later=True
    )
    temperature: float = setting(0.07, doc="temperature of the contrastive loss (our choice)", later=True, part="loss")
    lr: float = setting(1e-3, doc="learning rate of the map", later=True, part="recipe")
    steps: int = setting(
        500,
        doc="number of training steps of the map, each on all pairs (our choice)",
        unpublished=True,
        later=True,
        part="recipe",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "distance_weight", "contrastive_weight", hint="Use 0 to omit the term.")
        if self.distance_weight == self.contrastive_weight == 0:
            raise SettingError(
                "<distance_weight> and <contrastive_weight> are 0, so the map has no loss", "Set one of them above 0."
            )
        require(self, "> 0", "temperature", hint="Use <temperature>=0.07.")
        require(self, "> 0", "lr", hint="Use <lr>=0.001.")
        require(self, ">= 1", "steps")

    def start(self, width: int) -> Weights:
        raise NotImplementedError

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        return x @ w["matrix"] + w["shift"]

    def penalty(self, w: Weights) -> Tensor | float:
        """Return the penalty of eq. 6 for the weights of a map, a scalar; 0 for a map without a penalty."""
        return 0.0

    def fit(self, x: Tensor, y: Tensor) -> Weights:
        start = {name: value.to(x.device) for name, value in self.start(x.shape[-1]).items()}
        return fit_by_gradient(start, self.loss, x, y, lr=self.lr, steps=self.steps, decay=0.0)

    def loss(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        """Compute L, a scalar, of the map with weights `w` over pairs of features x and y, (n, d) each."""
        mapped = self.apply(w, x)
        loss = self.distance_weight * (mapped - y).square().sum(dim=-1).mean()
        if self.contrastive_weight:
            logits = l2_normalize(mapped) @ l2_normalize(y).mT / self.temperature
            loss = loss + self.contrastive_weight * contrastive(logits)
        return loss + self.penalty(w)


@dataclass(frozen=True, kw_only=True)
class RelaxedConfig(BackwardConfig):
    """Settings of the relaxed map, which is affine and has the penalty of eq. 6."""

    name: Literal["relaxed"] = "relaxed"
    relative_threshold: float = setting(
        0.53,
        doc="distance lambda of the map from orthogonal matrices below which the penalty has almost no effect, eq. "
        "6, divided by the square root of the width (paper: lambda = 12 at width 512)",
        later=True,
    )
    sharpness: float = setting(
        10.0, doc="slope alpha of the sigmoid at the threshold, eq. 6", unpublished=True, later=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "relative_threshold", hint="The paper's value is 0.53.")
        require(self, "> 0", "sharpness", hint="Use <sharpness>=10.")

    def start(self, width: int) -> Weights:
        return {"matrix": torch.eye(width), "shift": torch.zeros(width)}

    def penalty(self, w: Weights) -> Tensor:
        matrix = w["matrix"]
        return orthogonality_penalty(matrix, self.relative_threshold * len(matrix) ** 0.5, self.sharpness)


@dataclass(frozen=True, kw_only=True)
class StrictConfig(BackwardConfig):
    """Settings of the strict map x exp(P), which is orthogonal because P is skew-symmetric."""

    name: Literal["strict"] = "strict"

    def start(self, width: int) -> Weights:
        return {"upper": torch.zeros(width * (width - 1) // 2)}

    def apply(self, w: Weights, x: Tensor) -> Tensor:
        return x @ rotation(w["upper"], x.shape[-1])


MAPS: dict[str, type] = {"relaxed": RelaxedConfig, "strict": StrictConfig}


@dataclass(frozen=True, kw_only=True)
class LambdaOrthogonalityConfig:
    """Settings of Lambda-orthogonality, with ranges in search_spaces/."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    map: RelaxedConfig | StrictConfig = group(
        MAPS, "relaxed", doc="map from the new to the old model's caption space", later=True
    )
    pairs: int = setting(4096, doc="maximum number of captions to which a map is fitted", unpublished=True, later=True)

    def __post_init__(self) -> None:
        require(self, ">= 1", "pairs")


class LambdaOrthogonality(QueryCompensation):
    """Strategy that maps captions, nearly orthogonally, to the space of the model that encoded the searched videos."""

    Config = LambdaOrthogonalityConfig
    PRESETS = {
        "paper": {},
        "strict": Override({"method.map.name": "strict"}),
        "soft": Override({"method.map.relative_threshold": 0.0}),  # soft orthogonality, the paper's other extreme
        "contrastive": Override({"method.map.contrastive_weight": 0.1}),  # the weight is ours
        "shapes": {"base.lr": 4e-6},  # as for clip4clip, with optim.lr_scale=50, for the small backbone
    }
    config: LambdaOrthogonalityConfig

    def make_link(self, width: int, rows: int) -> MapLink:
        return MapLink(self.config.map, width, rows, self.config.pairs)

    def task_metrics(self) -> dict[str, float]:
        """Add to the metrics the largest |W W' - I|_F and the largest penalty of eq. 6 among the task's maps."""
        found = super().task_metrics()
        if not self.links or not isinstance(self.config.map, RelaxedConfig):
            return found
        maps = cast(Tensor, self.links[-1].matrix).double()
        gaps = torch.linalg.matrix_norm(
            maps @ maps.mT - torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
        )
        penalties = torch.stack([torch.as_tensor(self.config.map.penalty({"matrix": each})) for each in maps])
        return {**found, "orthogonality_gap": float(gaps.max()), "orthogonality_penalty": float(penalties.max())}
