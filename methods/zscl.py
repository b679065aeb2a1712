"""ZSCL: distills the pre-trained model's similarities on a reference set, and averages the weights within a task.

Zheng et al., "Preventing Zero-Shot Transfer Degradation in Continual Learning of Vision-Language Models",
arXiv:2303.06628 (ICCV 2023), as a baseline of CTVR (arXiv:2503.10111, table 1). x are images and y texts of a
reference set that is not part of any task (methods/layers/replay/reference.py). S is the retriever's similarity, s
CLIP's factor, * marks features by the pre-trained model, and theta^ is the average of the weights theta:

    Z = s S(y*, x),  Z* = s S(y*, x*)      (R, B), section 3.1
    L = L_retriever + weight (D(Z*^T -> Z^T) + D(Z* -> Z)) + l2 |theta - theta_start|^2,   D as in methods/lwf.py
    theta^ <- (n theta^ + theta) / (n + 1) after every `average_every` steps, section 3.2; n = 1 at theta_start

The teacher is never updated (otherwise the method would be LwF). theta^ replaces theta after a task, and whenever the
method is in evaluation mode.

Differences: an image is a video of one frame. The paper uses ImageNet images and CC3M captions. Without them, the
reference set is a small set of synthetic images, and results are not comparable with the paper's. The paper trains each
task for 1000 steps and averages every 100; tasks of CTVR have 200 to 1600 steps, and its interval is not published. An
interval of 10 gives nearly the same mean and also suits short tasks. Preset `original` is the released command. It uses
l2 and the average together; the paper's ablation treats them as alternatives. The factor is fixed
(base.train_scale=false). Weights are added to the average after 1, 1 + I, 1 + 2I, ... steps, where I is the interval.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ctvr.methods.base import Batch, Capabilities, Method, Override, Recipe, Task
from ctvr.methods.families.released_recipes import FIXED_SCALE, MTIL, MTIL_LEFT_OUT
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.gather import deal, gather, world_size
from ctvr.methods.layers.losses.distillation import backbone_of, frozen_start, symmetric_distillation
from ctvr.methods.layers.replay.reference import ReferenceSet, load_reference
from ctvr.methods.settings import SettingError, require, setting

_AT_ONCE = 250  # number of texts that are encoded together
_SCRIPT = "mtil/scripts/ZSCL.sh"
ORIGINAL = Recipe(
    "Thunderbeee/ZSCL@b96e714",
    {
        "method.weight": (1.0, f"{_SCRIPT}: --image_loss --text_loss"),
        "method.temperature": (2.0, "mtil/src/args.py: --T"),
        "method.average_every": (100, f"{_SCRIPT}: --we --avg_freq 100"),
        "method.average_from": ("first", "mtil/src/models/finetune.py: iteration % avg_freq == 0, after the step"),
        "method.l2": (1.0, f"{_SCRIPT}: --l2 1"),
        "base.lr": (1e-5, f"{_SCRIPT}: --lr"),
        "base.train_scale": FIXED_SCALE,
        **MTIL,
    },
    (
        *MTIL_LEFT_OUT,
        "reference images of ImageNet, captions of Conceptual Captions' validation set: name them by method.reference",
    ),
)


@dataclass(frozen=True, kw_only=True)
class ZSCLConfig:
    """Settings of ZSCL, with ranges in search_spaces/. CTVR publishes only T = 2."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    weight: float = setting(1.0, doc="weight of both distillation terms", unpublished=True, part="loss")
    temperature: float = setting(2.0, doc="temperature T of the distillation", part="loss")
    reference: str = setting(
        "embedded",
        doc="reference set of the distillation: `embedded`, the path of a folder with images and captions.txt, or "
        "the path of a .safetensors file",
    )
    reference_images: int | None = setting(
        None,
        doc="number of reference images per step over all workers, rounded up to a multiple of the number of "
        "workers; none: the number of pairs",
        part="loss",
    )
    reference_frames: int = setting(
        1,
        doc="number of times that a reference image is repeated as a frame, for a retriever with a fixed number of "
        "frames",
        part="loss",
    )
    reference_texts: int = setting(1000, doc="number R of reference texts, the first of the reference set", part="loss")
    average_every: int = setting(
        10,
        doc="number I of steps between two snapshots of the weight average; 0: no averaging",
        unpublished=True,
        part="recipe",
    )
    average_from: Literal["interval", "first"] = setting(
        "interval",
        doc="steps after which snapshots are taken, with I = average_every. interval: I, 2I, ..; first: 1, 1 + I, 1 "
        "+ 2I, .., as in the released code",
        part="recipe",
    )
    l2: float = setting(
        0.0,
        doc='weight of the squared distance of the weights from their values at the start of the task ("WC" in the '
        "paper's ablation)",
        unpublished=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "weight", "l2", hint="Use 0 to omit the term.")
        require(self, "> 0", "temperature", hint="The paper uses 2.")
        require(self, ">= 0", "average_every", hint="Use 0 to train without averaging.")
        require(self, ">= 1", "reference_images", "reference_frames", "reference_texts")


class ZSCL(Strategy):
    """Strategy that distills the pre-trained model into a retriever on a reference set, and averages its weights."""

    Config = ZSCLConfig
    PRESETS = {
        "paper": {},
        "shapes": {"base.lr": 4e-6},  # with optim.lr_scale=50, for the small backbone
        "original": ORIGINAL,
        # mtil/scripts/wc.sh: l2 alone, no distillation
        "weight-consolidation": Override({"method.l2": 1.0, "method.average_every": 0, "method.weight": 0.0}),
    }
    config: ZSCLConfig

    @classmethod
    def compares(cls, config: ZSCLConfig) -> bool:
        return config.weight > 0

    @classmethod
    def check_base(cls, config: ZSCLConfig, base: type[Method], base_config: Any) -> None:
        super().check_base(config, base, base_config)
        only = base.capabilities(base_config).required_num_frames
        if config.weight and only not in {None, config.reference_frames}:
            raise SettingError(
                f"the strategy passes images as videos of {config.reference_frames} frames, but the retriever "
                f"takes videos of {only}",
                write=f"<reference_frames>={only}",
            )

    @classmethod
    def capabilities(cls, config: ZSCLConfig) -> Capabilities:
        # Reference features and weight averages are state of an epoch
        return replace(super().capabilities(config), fits_vectors=False, has_epoch_state=True)

    def __init__(self, config: ZSCLConfig, base: Method) -> None:
        super().__init__(config, base)
        self.reference: ReferenceSet | None = None
        if config.weight:
            self.reference = load_reference(config.reference, backbone_of(base))
        self._texts: Tensor | None = None  # (R, ...) the teacher's features
        self._start: list[Tensor] = []  # theta_start, for l2
        self._average: list[Tensor] = []  # theta^
        self._aside: list[Tensor] | None = None  # theta, while theta^ replaces it
        self._steps = self._averaged = 0

    # ------------------------------------------------------------------------------------- the stream

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.base.to(backbone_of(self.base).logit_scale.device)  # new parts are still on the device of their creation
        if task.index == 0 and self.config.weight:
            self.teacher = frozen_start(self.base)
        self._start = self._copy() if self.config.l2 else []
        self._average = self._copy() if self.config.average_every else []
        self._aside, self._steps, self._averaged = None, 0, 0

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        self.eval()  # theta^ replaces theta, permanently
        kept = self._averaged - self._offset  # snapshots after the first step
        if self._average and self._steps > self._averaged and not kept:
            learned = "half of its first step" if self._offset else "nothing"
            warnings.warn(
                f"{task.name} took {self._steps} steps, but weights are averaged every {self.config.average_every} "
                f"steps, so it has learned {learned}. Lower method.average_every, or use 0.",
                stacklevel=2,
            )
        self._average, self._start, self._aside = [], [], None
        super().end_task(task, loader)

    # ----------------------------------------------------------------------------------------- losses

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        if self.teacher is not None and self.reference is not None:
            size = world_size()
            count = size * math.ceil((self.config.reference_images or len(batch.video_ids) * size) / size)
            rows = deal(torch.randint(len(self.reference), (count,)))
            images = self.reference.images(rows.tolist(), batch.frames.device)
            images = images.expand(-1, self.config.reference_frames, -1, -1, -1)
            terms["distillation"] = self.config.weight * self.distil(images)
        if self._start:
            terms["l2"] = self.config.l2 * self.distance()
        return terms

    def distil(self, images: Tensor) -> Tensor:
        """Compute the distillation loss, a scalar, from similarities of images (B, T, 3, S, S) and reference texts."""
        assert self.teacher is not None
        texts = self.texts(images.device)
        new, old = gather(self.base.encode_video(images)), gather(self.teacher("encode_video", images))
        with torch.autocast(images.device.type, enabled=False):
            scale = self.base.scale().float()
            student = scale * self.base.score(texts, new).float()
            teacher = scale.detach() * self.teacher("score", texts, old).float()
            return symmetric_distillation(student, teacher, self.config.temperature)

    def texts(self, device: torch.device) -> Tensor:
        """Return y*, the pre-trained model's features (R, ...) of the reference texts; computed once."""
        if self._texts is None:
            assert self.teacher is not None
            assert self.reference is not None
            tokens = self.reference.tokens[: self.config.reference_texts]
            parts = [self.teacher("encode_text", part.to(device)) for part in tokens.split(_AT_ONCE)]
            longest = max(part.shape[1] for part in parts)  # word features (R, L, d) end with padding
            self._texts = torch.cat(
                [nn.functional.pad(p, (0, 0, 0, longest - p.shape[1])) if p.ndim == 3 else p for p in parts]
            )
        return self._texts

    def distance(self) -> Tensor:
        """Compute |theta - theta_start|^2, a scalar, over all trained weights."""
        pairs = zip(self._trained(), self._start, strict=True)
        return torch.stack([(now - start).float().square().sum() for now, start in pairs]).sum()

    # ---------------------------------------------------------------------------------------- weights

    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        self._steps += 1
        if self._average and self._steps % self.config.average_every == self._offset % self.config.average_every:
            self._averaged += 1
            for average, now in zip(self._average, self._trained(), strict=True):
                average += (now - average) / (self._averaged + 1)

    def train(self, mode: bool = True) -> ZSCL:
        """Use the average theta^ as weights in evaluation mode, and restore theta in training mode."""
        super().train(mode)
        if self._average and not mode and self._aside is None:
            self._aside = self._copy()
            self._put(self._average)
        elif self._average and mode and self._aside is not None:
            self._put(self._aside)
            self._aside = None
        return self

    @property
    def _offset(self) -> int:
        """Return the number of steps, modulo the interval, after which weights are first added to the average."""
        return int(self.config.average_from == "first")

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for group in self.base.param_groups() for parameter in group["params"]]

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._trained()]

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._trained(), values, strict=True):
            parameter.copy_(value)
