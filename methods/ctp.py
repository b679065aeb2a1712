"""CTP: a contrastive loss against a momentum model, and distillation of the similarities within a batch.

Zhu et al., "CTP: Towards Vision-Language Continual Pretraining via Compatible Momentum Contrast and Topology
Preservation", ICCV 2023, arXiv:2308.07146, as in its code (KevinLight831/CTP@7baab57), for any retriever with one
vector for each item. v and c are unit features of videos and captions by the trained model (theta), v' and c' by the
momentum model (theta'), v* and c* by the model before the task (theta*). K' are the queues of earlier v' and c', and
D(a -> b) = mean_rows KL(softmax a || softmax b):

    L = L_retriever + momentum_weight L_CMC + cross_weight L_x + same_weight L_s       L_x, L_s from the second task on
    L_CMC = mean of InfoNCE(c [v'; K'_v]^T / T) and InfoNCE(v [c'; K'_c]^T / T)
    L_x = mean of D(c* v*^T / T' -> c v^T / T') and of the same for columns
    L_s = mean of D(v* v*^T / T' -> v v^T / T') and of the same for captions, without the diagonals
    after a step:  theta' <- m theta' + (1 - m) (theta + theta*) / 2;  in the first task theta* = theta and m = m_first

Differences: the released model also predicts masked words, which a dual encoder cannot. The loss of the retriever keeps
its own temperature; the release has 0.07 in every term. The release updates theta' inside the forward pass, before its
use, so even an evaluation of the loss changes theta'; here theta' is updated after the step.

theta' is a moving average of the mean of the previous and the current model. L_x and L_s do not change if the features
of both towers are rotated together, so they do not keep an index of stored videos valid. L_CMC slightly opposes a
rotation of v and c, because v', c' and the queues do not rotate with them.

Shapes: B pairs of all workers, K keys in a queue, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.base import Batch, Capabilities, Frozen, Method, Recipe, Task
from ctvr.methods.families.momentum import MOMENTUM_HINT
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.contrastive import distillation
from ctvr.methods.layers.losses.distillation import EncodedOnce, backbone_of, symmetric_distillation
from ctvr.methods.layers.replay.cache import VideoFeatureCache
from ctvr.methods.layers.replay.queues import KeyQueue, Pair
from ctvr.methods.settings import SettingError, require, setting

_CONFIG, _MODEL = "configs/base_seqF.yaml", "models/clip_pretrain.py"
PAPER = Recipe(
    "KevinLight831/CTP@7baab57",
    {
        "method.momentum_weight": (1.0, _MODEL),
        "method.cross_weight": (1.0, _MODEL),
        "method.same_weight": (1.0, _MODEL),
        "method.m": (0.9, _MODEL),
        "method.m_first": (0.995, _MODEL),
        "method.temperature": (0.07, _MODEL),
        "method.topology_temperature": (0.07, _MODEL),
        "method.queue_size": (1024, _MODEL),
        "base.lr": (1e-4, _CONFIG),
        "base.train_scale": (False, f"{_MODEL}: the temperature is fixed"),
        "base.start_scale": (1 / 0.07, _MODEL),
        "optim.name": ("adamw", _CONFIG),
        "optim.betas": ((0.9, 0.999), "train/train_CTP.py: torch's default"),
        "optim.eps": (1e-8, "train/train_CTP.py: torch's default"),
        "optim.weight_decay": (0.05, _CONFIG),
        "optim.decay_parameters": ("all", "its optimizer has one group"),
        "optim.schedule": ("cosine", "utils.py: cosine_scheduler, in every step"),
        "optim.final_share": (0.01, f"{_CONFIG}: min_lr 1e-6, to which the cosine falls"),
        "optim.warmup": (0.0, f"{_CONFIG}: there is none"),
        "optim.grad_clip": (None, "there is none"),
        "optim.epochs": (5, _CONFIG),
        "data.batch_size": (512, f"{_CONFIG}: 128 on each of 4 GPUs"),
        "data.max_tokens": (30, _CONFIG),
    },
    (
        "masked words, and their distillation by the momentum model, which need a fusion tower",
        "DeiT and BERT at the start of the first task; here CLIP",
        "the momentum model moves before the loss, in every forward pass",
        "CTP_ER, whose memory draws by reservoir",
    ),
)


@dataclass(frozen=True, kw_only=True)
class CTPConfig:
    """Settings of CTP, with ranges in search_spaces/; the released code has the same defaults."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    momentum_weight: float = setting(1.0, doc="weight of the contrastive loss with the momentum model", part="loss")
    cross_weight: float = setting(
        1.0, doc="weight of the topology loss between the modalities", later=True, part="loss"
    )
    same_weight: float = setting(1.0, doc="weight of the topology loss within each modality", later=True, part="loss")
    temperature: float = setting(0.07, doc="temperature T of the contrastive loss with the momentum model", part="loss")
    topology_temperature: float = setting(0.07, doc="temperature T' of both topology losses", later=True, part="loss")
    m: float = setting(0.9, doc="momentum of the momentum model from the second task on", later=True, part="recipe")
    m_first: float = setting(0.995, doc="momentum of the momentum model in the first task", part="recipe")
    queue_size: int = setting(1024, doc="number of keys in a queue, which starts with random unit vectors", part="loss")

    def __post_init__(self) -> None:
        require(self, ">= 0", "momentum_weight", "cross_weight", "same_weight", hint="Use 0 to omit the term.")
        require(self, "> 0", "temperature", "topology_temperature", hint="The release uses 0.07.")
        require(self, ">= 1", "queue_size", hint="The release uses 1024.")
        require(self, "in [0, 1]", "m", "m_first", hint=MOMENTUM_HINT)


def momentum_contrast(new: Pair, keys: Pair, queued: Pair, temperature: float) -> Tensor:
    """Compute L_CMC, a scalar: `new` features (B, d) against `keys` (B, d) and `queued` keys (K, d).

    Features are compared with keys of the other modality; key i is the positive of feature i.
    """
    target = torch.arange(len(new.video), device=new.video.device)

    def one_way(query: Tensor, own: Tensor, former: Tensor) -> Tensor:
        return F.cross_entropy(query @ torch.cat([own, former]).mT / temperature, target)

    return (one_way(new.video, keys.text, queued.text) + one_way(new.text, keys.video, queued.video)) / 2


def cross_topology(new: Pair, old: Pair, temperature: float) -> Tensor:
    """Compute L_x, a scalar, over rows and columns of the similarities (B, B) of captions and videos."""
    now, before = (x.text @ x.video.mT / temperature for x in (new, old))
    return symmetric_distillation(now, before, 1.0) / 2


def same_topology(new: Pair, old: Pair, temperature: float) -> Tensor:
    """Compute L_s, a scalar, over the similarities (B, B) among videos and among captions, without the diagonals."""
    itself = torch.eye(len(new.video), dtype=torch.bool, device=new.video.device)

    def logits(x: Tensor) -> Tensor:
        return (x @ x.mT).masked_fill(itself, -1000.0) / temperature  # as released; its softmax weight is exactly 0

    return (
        sum((distillation(logits(x), logits(z), 1.0) for x, z in zip(new, old, strict=True)), itself.new_zeros(())) / 2
    )


@torch.no_grad()
def follow(momentum: Iterable[Tensor], present: Iterable[Tensor], former: Iterable[Tensor], m: float) -> None:
    """Set theta' <- m theta' + (1 - m) (theta + theta*) / 2 in place, by the order of the arguments.

    If theta', theta and theta* are equal, theta' remains bit-identical.
    """
    for kept, now, old in zip(momentum, present, former, strict=True):
        kept.lerp_(torch.lerp(old, now, 0.5), 1 - m)


class CTP(Strategy):
    """Strategy that contrasts a retriever with its momentum model, and distills the previous model's similarities."""

    Config = CTPConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PAPER,
        "shapes": {"base.lr": 4e-6, "method.queue_size": 32},  # with optim.lr_scale=50, for the small backbone
    }
    config: CTPConfig

    @classmethod
    def capabilities(cls, config: CTPConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, uses_all_parameters=True, has_epoch_state=True)

    @classmethod
    def compares(cls, config: CTPConfig) -> bool:
        return config.momentum_weight + config.cross_weight + config.same_weight > 0

    @classmethod
    def check_base(cls, config: CTPConfig, base: type[Method], base_config: Any) -> None:
        super().check_base(config, base, base_config)
        if cls.compares(config) and base.score is not Method.score:
            raise SettingError(
                "the strategy compares one vector of each item, but the retriever has several", write="<base>=clip4clip"
            )

    def __init__(self, config: CTPConfig, base: Method) -> None:
        super().__init__(config, base)
        self.queue = KeyQueue(config.queue_size, backbone_of(base).embed_dim) if config.momentum_weight else None
        self.former: Frozen | None = None  # theta*
        self.momentum: Frozen | None = None  # theta'
        self._former_videos = VideoFeatureCache()
        self._new: list[tuple[Pair, Tensor]] = []  # keys to enqueue after the optimizer step

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if task.index == 0 and self.queue is not None:
            self.queue.reset(random=True)
        self.base.to(backbone_of(self.base).logit_scale.device)  # new parts are still on the device of their creation
        self.momentum = Frozen(self.base) if self.config.momentum_weight else None
        self.former = Frozen(self.base) if task.index > 0 and self.compares(self.config) else None
        self._former_videos, self._new = VideoFeatureCache(), []

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self.momentum is None and self.former is None:
            return super().losses(batch)
        encoded = EncodedOnce(self.base, batch)
        terms, c = encoded.losses(), self.config
        new = Pair(gather(encoded.videos()).float(), gather(encoded.texts()).float())
        keys, old = self._keys(batch), self._old(batch)
        with torch.autocast(new.video.device.type, enabled=False):
            if keys is not None and self.queue is not None:
                terms["momentum"] = c.momentum_weight * momentum_contrast(
                    new, keys, self.queue.content()[0], c.temperature
                )
            if old is not None and c.cross_weight:
                terms["cross"] = c.cross_weight * cross_topology(new, old, c.topology_temperature)
            if old is not None and c.same_weight:
                terms["same"] = c.same_weight * same_topology(new, old, c.topology_temperature)
        return terms

    def _keys(self, batch: Batch) -> Pair | None:
        """Compute v' and c' of the global batch, which `after_step` adds to the queues; None if L_CMC is off."""
        if self.momentum is None:
            return None
        video, text = self.momentum("encode_video", batch.frames), self.momentum("encode_text", batch.tokens)
        keys = Pair(gather(video).float(), gather(text).float())
        if torch.is_grad_enabled():
            self._new.append((keys, gather(batch.video_ids)))
        return keys

    def _old(self, batch: Batch) -> Pair | None:
        """Compute v* and c* of the global batch; None in the first task, or if no term reads them."""
        if self.former is None or not self.config.cross_weight + self.config.same_weight:
            return None
        videos = self._former_videos.of(batch, partial(self.former, "encode_video"))
        return Pair(gather(videos).float(), gather(self.former("encode_text", batch.tokens)).float())

    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        if self.momentum is None or self.queue is None:
            return
        is_first = self.former is None
        former = self.base if self.former is None else self.former.module
        models = (self.momentum.module.parameters(), self.base.parameters(), former.parameters())
        follow(*models, self.config.m_first if is_first else self.config.m)
        for keys, videos in self._new:
            self.queue.enqueue(keys, videos)
        self._new = []
