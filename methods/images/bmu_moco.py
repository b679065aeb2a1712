"""BMU-MoCo over images, our version of the last row of its Table 4 (Gao et al., NeurIPS 2022, section 4.4).

The paper specifies neither the settings nor how one modality replaces two, and its code is not published. Here the two
views of an image replace a video and its caption in eq. 7-18 of methods/bmu_moco.py. One encoder, a backbone with a
projector, encodes both as unit vectors. Batch size and learning rate are from the released code whose protocol the
table uses (divyam3897/UCL@cfaa81d); m, m_hat, tau and the queue size are from section 4.1 of the paper. Keys are
computed in training mode, so that batch normalization uses the statistics of their batch, as in MoCo. Only weights are
averaged; each key encoder has separate running statistics of batch normalization.

Shapes: B images of all workers, C width of the backbone, d width of projected features.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, Task
from ctvr.methods.families.momentum import MOMENTUM_HINT, START_HINT
from ctvr.methods.images.siamese import FIRST, SECOND, SGD, make_projector
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.replay.momentum import Negatives, ema_update, lerp_, momentum_contrast, reverse_ema_update
from ctvr.methods.layers.replay.queues import KeyQueue, Pair
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class ImageBMUConfig:
    """Settings of BMU-MoCo over images; the module's docstring gives their sources."""

    width: int = setting(2048, doc="width d of projected features")
    lr: float = setting(0.03, doc="learning rate for a batch of 256 images", unpublished=True, part="recipe")
    m: float = setting(0.99, doc="momentum of the momentum encoders, eqs. 8 and 14", unpublished=True, part="recipe")
    m_hat: float = setting(
        0.99,
        doc="momentum of the reverse update, eqs. 12 and 13; 1: no reverse update",
        unpublished=True,
        part="recipe",
    )
    tau: float = setting(0.07, doc="temperature of the contrastive loss", unpublished=True, part="loss")
    queue_size: int = setting(1440, doc="number of keys in a queue", part="loss")
    use_global: bool = setting(True, doc="whether to use the global momentum encoder, which is kept over all tasks")
    method_start_task: int = setting(
        2,
        doc="number, from 1, of the first task trained with BMU-MoCo; earlier tasks are trained with Base-MoCo, as in "
        "the paper's other tables",
    )

    def __post_init__(self) -> None:
        require(self, "> 0", "tau", hint="The paper uses 0.07.")
        require(self, "in [0, 1]", "m", "m_hat", hint=MOMENTUM_HINT)
        require(self, ">= 1", "method_start_task", hint=START_HINT)


class Encoder(nn.Module):
    """Backbone and projector that encode images as unit vectors: (B, 3, H, W) -> (B, d)."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone, self.projector = backbone, make_projector(int(backbone.width), width)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        z: Tensor = self.projector["layer3"](self.projector["layer1"](self.backbone(images)))
        return F.normalize(z.float(), dim=-1)

    def pair(self, batch: Batch) -> Pair:
        """Encode both views of the images of all workers; the first view replaces the video, the second the caption."""
        return Pair(gather(self(batch.frames[:, FIRST])), gather(self(batch.frames[:, SECOND])))


class KeyEncoder(nn.Module):
    """Momentum encoder and the queue of its keys; its batch normalization follows the training mode of the method."""

    def __init__(self, encoder: Encoder, config: ImageBMUConfig) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.queue = KeyQueue(config.queue_size, config.width)

    @torch.no_grad()
    def keys(self, batch: Batch) -> Pair:
        return self.encoder.pair(batch)


class ImageBMUMoCo(Method):
    """BMU-MoCo: from task `method_start_task` on, momentum encoders also update the encoder after every step."""

    Config = ImageBMUConfig
    OPTIMIZER = SGD
    domain = "images"
    PRESETS = {"paper": {}, "shapes": {"method.width": 128, "method.queue_size": 128}}  # 256 images per task
    config: ImageBMUConfig

    @classmethod
    def capabilities(cls, config: ImageBMUConfig) -> Capabilities:
        return Capabilities(uses_in_batch_negatives=False)

    def __init__(self, config: ImageBMUConfig, backbone: nn.Module) -> None:
        super().__init__()
        self.config, self.encoder = config, Encoder(backbone, config.width)
        self.local = KeyEncoder(self.encoder, config)
        self.global_ = KeyEncoder(self.encoder, config) if config.use_global else None
        self.task_index = 0
        self._new: list[tuple[KeyEncoder, Pair]] = []  # keys to enqueue after the optimizer step

    @property
    def momenta(self) -> list[KeyEncoder]:
        return [self.local] if self.global_ is None else [self.local, self.global_]

    @property
    def _has_started(self) -> bool:
        return self.task_index + 1 >= self.config.method_start_task

    def begin_task(self, task: Task) -> None:
        self.task_index, self._new = task.index, []
        for momentum in self.momenta:
            if task.index == 0 or momentum is self.local:  # the global encoder is initialized in the first task only
                lerp_(momentum.encoder, self.encoder, 1.0)
            if task.index == 0:
                momentum.queue.reset()

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="encoder", params=list(self.encoder.parameters()), lr=self.config.lr, decay="all")]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode images with the trained backbone: (B, 1, 3, H, W) -> (B, C)."""
        features: Tensor = self.encoder.backbone(frames[:, 0])
        return features

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        queries = self.encoder.pair(batch)
        self._new = [(momentum, momentum.keys(batch)) for momentum in self.momenta]
        used = self._new if self._has_started else self._new[:1]
        queues = [momentum.queue.content()[0] for momentum, _ in used]
        none = [torch.zeros(len(queries.video), len(q.video), dtype=torch.bool, device=q.video.device) for q in queues]
        negatives = Negatives.join([Negatives(queue, spared) for queue, spared in zip(queues, none)])
        return {"contrastive": momentum_contrast(queries, [keys for _, keys in used], negatives, self.config.tau)}

    def after_step(self) -> None:
        if self._has_started:
            for momentum in self.momenta:  # eq. 12, then eq. 13
                reverse_ema_update(self.encoder, momentum.encoder, self.config.m_hat)
        for momentum in self.momenta:  # eq. 8, eq. 14
            ema_update(momentum.encoder, self.encoder, self.config.m)
        for momentum, keys in self._new:
            count = torch.arange(len(keys.video), device=keys.video.device)
            momentum.queue.enqueue(keys, count)
        self._new = []
