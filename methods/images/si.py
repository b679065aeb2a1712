"""Synaptic intelligence over images as divyam3897/UCL@cfaa81d computes it (models/si.py).

Zenke et al., arXiv:1703.04200, eq. 3-5, penalise changes of weights that a former task needed. This file follows the
release where it differs from the paper: in a step a weight earns rate g^2, where the paper has -g times its change; g
includes the penalty's gradient and is clipped to [-1, 1]; rate is the configured one, not the optimizer's; xi is 1.

    L = L_views + strength sum_i Omega_i (theta_i - theta*_i)^2   over the backbone's weights
    omega_i += rate g_i^2;   at a task's end Omega_i += omega_i / ((theta_i - theta*_i)^2 + 1)

Running statistics of batch normalisation are not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ctvr.methods.base import Batch, Task
from ctvr.methods.images.siamese import Siamese, SiameseStrategy
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class ImageSIConfig:
    """Defaults: the release's configurations."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("image_finetune", doc="name of the wrapped siamese network, whose settings are base.*")
    strength: float = setting(0.4, doc="strength c of the penalty", unpublished=True, part="loss")
    rate: float = setting(0.03, doc="weight of a squared gradient")
    clip: float = setting(1.0, doc="largest absolute value in a gradient")

    def __post_init__(self) -> None:
        require(self, ">= 0", "strength", hint="The release has 0.4.")
        require(self, ">= 0", "rate", hint="The release has 0.03.")
        require(self, "> 0", "clip", hint="The release has 1.")


class ImageSI(SiameseStrategy):
    """Penalise changes of weights that former tasks needed."""

    Config = ImageSIConfig
    config: ImageSIConfig
    importance: Tensor  # Omega (P,), of all weights of the backbone, concatenated
    path: Tensor  # omega (P,)
    anchor: Tensor  # theta* (P,)

    def __init__(self, config: ImageSIConfig, base: Siamese) -> None:
        super().__init__(config, base)
        weights = parameters_to_vector(base.backbone.parameters()).detach()
        self.register_buffer("importance", torch.zeros_like(weights))
        self.register_buffer("path", torch.zeros_like(weights))
        self.register_buffer("anchor", weights.clone())
        self._is_first = True

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self._is_first = task.index == 0

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = self.base.losses(batch)
        if not self._is_first:
            weights = parameters_to_vector(self.base.backbone.parameters())
            terms["held"] = self.config.strength * (self.importance * (weights - self.anchor).square()).sum()
        return terms

    @torch.no_grad()
    def before_step(self) -> None:
        """Clip every gradient and record the backbone's: called after the backward pass, before the optimizer."""
        nn.utils.clip_grad_value_(self.base.parameters(), self.config.clip)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.base.backbone.parameters()]
        self.path += self.config.rate * parameters_to_vector(gradients).square()

    @torch.no_grad()
    def end_task(self, task: Task, loader: Any) -> None:
        weights = parameters_to_vector(self.base.backbone.parameters())
        self.importance += self.path / ((weights - self.anchor).square() + 1)
        self.anchor.copy_(weights)
        self.path.zero_()
