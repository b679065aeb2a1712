"""Synaptic intelligence over images, as in divyam3897/UCL@cfaa81d (models/si.py).

Zenke et al., arXiv:1703.04200, eq. 3-5, penalize changes of weights that were important for previous tasks. This file
follows the released code where it differs from the paper. In a step the importance omega of a weight increases by
rate * g^2; in the paper, by -g times the change of the weight. The gradient g includes the gradient of the penalty, and
is clipped to [-1, 1]. The rate is a setting, independent of the optimizer's learning rate. The damping constant is 1.

    L = L_views + strength sum_i Omega_i (theta_i - theta*_i)^2   over the weights of the backbone
    omega_i += rate g_i^2;   at the end of a task Omega_i += omega_i / ((theta_i - theta*_i)^2 + 1)

Running statistics of batch normalization are not penalized.

Shapes: P weights of the backbone.
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
    """Settings of synaptic intelligence; the default values are from the configurations of the released code."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("image_finetune", doc="name of the wrapped siamese network, whose settings are base.*")
    strength: float = setting(0.4, doc="strength c of the penalty", unpublished=True, part="loss")
    rate: float = setting(0.03, doc="factor of a squared gradient in the importance of a weight")
    clip: float = setting(1.0, doc="absolute value to which each element of a gradient is clipped")

    def __post_init__(self) -> None:
        require(self, ">= 0", "strength", hint="The released code uses 0.4.")
        require(self, ">= 0", "rate", hint="The released code uses 0.03.")
        require(self, "> 0", "clip", hint="The released code uses 1.")


class ImageSI(SiameseStrategy):
    """Strategy of synaptic intelligence, which penalizes changes of weights that were important for previous tasks."""

    Config = ImageSIConfig
    config: ImageSIConfig
    importance: Tensor  # Omega (P,), for all weights of the backbone, concatenated
    path: Tensor  # omega (P,), for the current task
    anchor: Tensor  # theta* (P,), weights at the end of the previous task

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
        """Clip all gradients, and add the squared gradients of the backbone to omega, before the optimizer step."""
        nn.utils.clip_grad_value_(self.base.parameters(), self.config.clip)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.base.backbone.parameters()]
        self.path += self.config.rate * parameters_to_vector(gradients).square()

    @torch.no_grad()
    def end_task(self, task: Task, loader: Any) -> None:
        weights = parameters_to_vector(self.base.backbone.parameters())
        self.importance += self.path / ((weights - self.anchor).square() + 1)
        self.anchor.copy_(weights)
        self.path.zero_()
