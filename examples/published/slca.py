"""SLCA: a slow backbone and a fast head, trained on samples from Gaussians of all categories after each later task.

Zhang et al., "SLCA: Slow Learner with Classifier Alignment", arXiv:2303.05118. Slow learner: two learning rates.
Classifier alignment: each class has a mean and a covariance of its features,

    z ~ N(f mean_c, covariance_c) for all classes c so far;   the head is trained on z after every later task
    f = 0.9 + 0.1 (t_c + 1) / (t + 1)                         authors' code; t: newest task, t_c: task of class c

What we changed: the head maps caption features x to q = unit(x + W x), and each category has one Gaussian of its pairs
[video, x]. A step samples equally many pairs of every category, and its loss is contrastive; logits are not normalized
by task. The next task continues from the aligned head; the authors' code returns to the head before the alignment, and
uses weight decay and a cosine schedule in the alignment. Every commit stores C factors of covariances, (2d, 2d) each.
Shapes: B pairs, d joint embedding, C categories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr import (
    Batch,
    Capabilities,
    Clip,
    Method,
    ParamGroup,
    Task,
    contrastive,
    l2_normalize,
    mean_pool,
    require,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class SlcaConfig:
    """Settings of SLCA."""

    lr_slow: float = setting(1e-6, doc="learning rate of the towers")
    lr_head: float = setting(1e-4, doc="learning rate of the head")
    lr_align: float = setting(1e-2, doc="learning rate in the alignment", later=True)
    align_steps: int = setting(20, doc="number of steps of the alignment after a later task", later=True)
    samples: int = setting(4, doc="number of samples of a category in each step of the alignment", later=True)

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr_slow", "lr_head", "lr_align", "align_steps")
        require(self, ">= 1", "samples")


class Slca(Method):
    """CLIP, fine-tuned at a low learning rate, with a head on captions."""

    Config = SlcaConfig

    @classmethod
    def capabilities(cls, config: SlcaConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, uses_all_parameters=True, learns_in_end_task=True)

    def __init__(self, config: SlcaConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.head = nn.Parameter(torch.zeros(backbone.embed_dim, backbone.embed_dim))

    def begin_task(self, task: Task) -> None:
        if not task.index:
            width = 2 * self.backbone.embed_dim
            self.register_buffer("origin", torch.full((task.num_categories,), -1))  # t_c, -1 before that task
            self.register_buffer("means", torch.zeros(task.num_categories, width))
            self.register_buffer("factors", torch.zeros(task.num_categories, width, width))  # L of L L' = covariance

    def param_groups(self) -> list[ParamGroup]:
        towers = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
        return [
            {"name": "slow", "params": towers, "lr": self.config.lr_slow},
            {"name": "head", "params": [self.head], "lr": self.config.lr_head},
        ]

    def encode_video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames))

    def _captions(self, tokens: Tensor) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self._map(self._captions(tokens))

    def _map(self, x: Tensor) -> Tensor:
        return l2_normalize(x + F.linear(x, self.head))

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        with torch.no_grad():
            pairs = [(self.encode_video(b.frames), self._captions(b.tokens), b.categories) for b in loader]
        videos, captions, categories = (torch.cat(part) for part in zip(*pairs))
        for c in categories.unique().tolist():
            z = torch.cat([videos, captions], dim=1)[categories == c].double()
            covariance = (z - z.mean(0)).mT @ (z - z.mean(0)) / max(len(z) - 1, 1)
            noise = 1e-4 * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
            self.means[c], self.factors[c] = z.mean(0), torch.linalg.cholesky(covariance + noise)
            self.origin[c] = task.index
        optimizer = torch.optim.SGD([self.head.requires_grad_()], self.config.lr_align, momentum=0.9, fused=True)
        scaled = self.means * (0.9 + 0.1 * (self.origin + 1) / (task.index + 1))[:, None]
        for _ in range(self.config.align_steps if task.index else 0):
            seen = (self.origin >= 0).nonzero()[:, 0].repeat_interleave(self.config.samples)
            mean, factor = scaled[seen], self.factors[seen]
            video, x = (mean + (factor @ torch.randn_like(mean)[:, :, None])[:, :, 0]).chunk(2, dim=1)
            loss = contrastive(self.scale().detach() * self._map(x) @ l2_normalize(video).mT)
            (self.head.grad,) = torch.autograd.grad(loss, [self.head])
            optimizer.step()
        self.head.grad = None
