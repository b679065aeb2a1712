"""SimSiam and Barlow Twins, which train a network without labels to give two views of an image similar features.

SimSiam: Chen & He, arXiv:2011.10566, algorithm 1. Barlow Twins: Zbontar et al., arXiv:2103.03230, eq. 1-2. Widths,
projector and predictor follow divyam3897/UCL@cfaa81d. Without a strategy, the method is the row `Finetune` of
BMU-MoCo's Table 4. Two parts of the released code are omitted: a third block of the projector that it never uses, and
with Barlow Twins the predictor, whose output the loss does not read.

Shapes: B images, H = W image size, C width of the backbone, d width of projected features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method, Override, ParamGroup, Task
from ctvr.methods.settings import SettingError, require, setting

SGD: dict[str, Any] = {  # optimizer of the released code, to which its learning rate belongs
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.weight_decay": 5e-4,
    "optim.schedule": "constant",
    "optim.warmup": 0.0,
    "optim.grad_clip": None,
    "optim.carry_momentum": True,
}
FIRST, SECOND, PLAIN = 0, 1, 2  # indices of the two views and the plain image in `Batch.frames` (B, 3, 3, H, W)


@dataclass(frozen=True, kw_only=True)
class SiameseConfig:
    """Settings of SimSiam and Barlow Twins; the default values are from configs/simsiam_c10.yaml of the release."""

    loss: Literal["simsiam", "barlow"] = setting("simsiam", doc="loss of two views: SimSiam or Barlow Twins")
    width: int = setting(2048, doc="width of projected features")
    bottleneck: int = setting(512, doc="hidden width of the predictor")
    off_diagonal: float = setting(
        0.005, doc="weight lambda of the off-diagonal terms in Barlow Twins, eq. 1", part="loss"
    )
    lr: float = setting(0.03, doc="learning rate for a batch of 256 images", unpublished=True, part="recipe")

    def __post_init__(self) -> None:
        require(self, ">= 1", "width", hint="The released code uses 2048.")
        require(self, ">= 1", "bottleneck", hint="The released code uses 512.")
        require(self, ">= 0", "off_diagonal", hint="The paper uses 0.005.")


def simsiam(p1: Tensor, p2: Tensor, z1: Tensor, z2: Tensor) -> Tensor:
    """Compute -(cos(p1, z2) + cos(p2, z1)) / 2, averaged over images, without a gradient through z.

    Args:
        p1: (B, d) predictor outputs of the first views.
        p2: (B, d) predictor outputs of the second views.
        z1: (B, d) projections of the first views.
        z2: (B, d) projections of the second views.
    """
    return (_negative_cosine(p1, z2) + _negative_cosine(p2, z1)) / 2


def _negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    return -F.cosine_similarity(p, z.detach(), dim=-1).mean()


def barlow_twins(z1: Tensor, z2: Tensor, off_diagonal: float = 0.005) -> Tensor:
    """Compute sum_i (1 - c_ii)^2 + off_diagonal * sum_{i != j} c_ij^2 of projections (B, d) of two views, B >= 2.

    c = z1^T z2 / B is computed from features that are standardized over the batch by the unbiased standard deviation,
    so c_ii of equal views is (B - 1) / B. A feature that is equal for all images gives NaN, as in the released code.
    """
    first, second = ((z - z.mean(dim=0)) / z.std(dim=0) for z in (z1, z2))
    c = first.mT @ second / len(z1)
    diagonal = c.diagonal()
    return (1 - diagonal).square().sum() + off_diagonal * (c.square().sum() - diagonal.square().sum())


def _layer(before: int, behind: int, is_last: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(before, behind), nn.BatchNorm1d(behind)]
    return nn.Sequential(*parts, *([] if is_last else [nn.ReLU()]))


def make_projector(before: int, wide: int) -> nn.ModuleDict:
    """Return a projector (B, before) -> (B, wide) of two layers, whose names are those of the released code."""
    return nn.ModuleDict({"layer1": _layer(before, wide), "layer3": _layer(wide, wide, is_last=True)})


class Siamese(Method):
    """Method that trains a backbone to compute similar features for two views of an image.

    Args:
        config: loss and widths.
        backbone: maps images (B, 3, H, W) to features (B, C), where C is `backbone.width`.
    """

    Config = SiameseConfig
    OPTIMIZER = SGD
    domain = "images"
    # shapes: narrow heads for the small backbone of the embedded stream
    PRESETS = {
        "paper": {},
        "shapes": {"method.width": 128, "method.bottleneck": 32},
        "barlow": Override({"method.loss": "barlow"}),
    }
    config: SiameseConfig

    def __init__(self, config: SiameseConfig, backbone: nn.Module) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        wide = config.width
        self.projector = make_projector(int(backbone.width), wide)  # type: ignore[arg-type]
        self.predictor = nn.ModuleDict(
            {"layer1": _layer(wide, config.bottleneck), "layer2": nn.Linear(config.bottleneck, wide)}
        )

    def param_groups(self) -> list[ParamGroup]:
        """Return all weights; weight decay applies to all of them, including biases and batch normalization."""
        base = [*self.backbone.parameters(), *self.projector.parameters()]
        return [
            ParamGroup(name="base", params=base, lr=self.config.lr, decay="all"),
            ParamGroup(name="predictor", params=list(self.predictor.parameters()), lr=self.config.lr, decay="all"),
        ]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode images with the backbone, without projector and predictor: (B, 1, 3, H, W) -> (B, C)."""
        features: Tensor = self.backbone(frames[:, 0])
        return features

    def project(self, images: Tensor) -> Tensor:
        """Encode images with backbone and projector: (B, 3, H, W) -> (B, d)."""
        z: Tensor = self.projector["layer3"](self.projector["layer1"](self.backbone(images)))
        return z

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"views": self.alike(batch.frames[:, FIRST], batch.frames[:, SECOND])}

    def alike(self, first: Tensor, second: Tensor) -> Tensor:
        """Compute the loss, a scalar, of two views (B, 3, H, W), which are separate batches for batch normalization."""
        z1, z2 = self.project(first), self.project(second)
        with torch.autocast(z1.device.type, enabled=False):
            if self.config.loss == "barlow":
                return barlow_twins(z1.float(), z2.float(), self.config.off_diagonal)
        p1, p2 = (self.predictor["layer2"](self.predictor["layer1"](z)) for z in (z1, z2))
        return simsiam(p1.float(), p2.float(), z1.float(), z2.float())


class SiameseStrategy(Method):
    """Base class of strategies that wrap a `Siamese`, to which all functions are delegated by default."""

    wraps = True
    domain = "images"
    PRESETS = {
        "paper": {},
        "shapes": {"base.width": 128, "base.bottleneck": 32},
        "barlow": Override({"base.loss": "barlow"}),
    }

    @classmethod
    def check_base(cls, config: Any, base: type[Method], base_config: Any) -> None:
        if base is not Siamese:
            raise SettingError(
                "the strategy wraps a siamese network over images only",
                write="<base>=image_finetune",
            )

    def __init__(self, config: Any, base: Siamese) -> None:
        super().__init__()
        self.config, self.base = config, base

    def param_groups(self) -> list[ParamGroup]:
        return self.base.param_groups()

    def encode_video(self, frames: Tensor) -> Tensor:
        return self.base.encode_video(frames)

    def begin_task(self, task: Task) -> None:
        self.base.begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return self.base.losses(batch)
