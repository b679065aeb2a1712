"""Dark experience replay: keeps features of memory pairs close to the features stored at the end of their task.

Buzzega et al., "Dark Experience for General Continual Learning", arXiv:2004.07211, eq. 5-6, over any
retriever; preset `bmu-moco` is BMU-MoCo's competitor "DER". v and q are the current features of a pair's video and
caption, z^V and z^T those at the end of its task:

    L = L_retriever(batch) + alpha / 2 mean_i (|v_i - z_i^V|^2 + |q_i - z_i^T|^2)   over memory pairs i

`target=similarities` instead keeps the similarities S(q, v) among the memory pairs of a step. The retrieval loss is not
computed on memory pairs. Differences: DER writes its memory during training; here pairs enter the reservoir when their
task ends. DER's code takes the mean of the squared differences over the d dimensions of an output, this file half of
their sum. So a published alpha is d / 2 times the alpha here: 0.3 there is 0.0012 here with d = 512.

DER keeps videos of earlier tasks, which the protocol of CTVR (arXiv:2503.10111) forbids. Tables therefore compare
methods with such a memory only with each other (`keeps_videos`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.base import Batch, Override, Recipe
from ctvr.methods.families.momentum import MOCO_UNPUBLISHED, PAPER
from ctvr.methods.families.released_recipes import REPLAY_LEFT_OUT, sgd
from ctvr.methods.families.strategy import RESERVOIR, ReplayConfig, ReplayStrategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.distillation import backbone_of
from ctvr.methods.layers.replay.buffer import Policy
from ctvr.methods.settings import require, setting

# The release's `der` on Split CIFAR-10 with a memory of 500 images
ORIGINAL = Recipe(
    "aimagelab/mammoth@e75a491",
    {
        "method.buffer_size": (500, "utils/best_args.py: --buffer_size 500"),
        "method.buffer_policy": ("reservoir", "utils/buffer.py"),
        "method.alpha": (2 * 0.3 / 512, "utils/best_args.py: alpha 0.3 of a mean over numbers; features of 512"),
        "method.target": ("features", "models/der.py: the network's answers"),
        **sgd(0.03, 50, 32, "utils/best_args.py: der on seq-cifar10"),
    },
    REPLAY_LEFT_OUT,
)


@dataclass(frozen=True, kw_only=True)
class DERConfig(ReplayConfig):
    """Settings of DER; no paper publishes values for retrieval."""

    UNPUBLISHED = ("method.buffer_size", "base.lr")
    ROW_UNPUBLISHED = {"der_moco": ("method.alpha", *MOCO_UNPUBLISHED)}

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    buffer_policy: Policy = setting("reservoir", doc=RESERVOIR, part="loss")
    alpha: float = setting(0.5, doc="weight of the distance to the stored outputs", unpublished=True, part="loss")
    target: Literal["features", "similarities"] = setting(
        "features",
        doc="outputs of the model that are stored for the pairs in memory: their features, or the similarities among "
        "the pairs",
        unpublished=True,
        later=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "alpha", hint=f"Use 0 to train `{self.base}` alone.")


class DER(ReplayStrategy):
    """Strategy that keeps the features of stored pairs of earlier tasks close to their stored values."""

    Config = DERConfig
    PRESETS = {
        "paper": {},
        "original": ORIGINAL,
        "shapes": {"base.lr": 4e-6},  # with optim.lr_scale=50, for the small backbone
        # BMU-MoCo's competitor (NeurIPS 2022, table 1): it wraps momentum contrast and has the paper's memory
        "bmu-moco": Override({"method.base": "base_moco"}),
        "bmu-moco-paper": {**PAPER, "method.base": "base_moco", "method.buffer_size": 10_000},
    }
    config: DERConfig

    @classmethod
    def compares(cls, config: DERConfig) -> bool:
        return config.alpha > 0 and config.target == "similarities"

    def kept_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.base.encode_video(batch.frames).float(), self._texts(batch)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = self.base.losses(batch)
        if self.config.alpha and len(self.memory):
            terms["distillation"] = self.config.alpha * self.distil(self.memory.sample(len(batch.video_ids)))
        return terms

    def distil(self, rows: Tensor) -> Tensor:
        """Compute how far the features (or similarities) of memory pairs are from the stored ones, a scalar loss.

        `rows` are the indices of the pairs in the memory.
        """
        pairs = self.memory.batch(rows)
        video, text = self.base.encode_video(pairs.frames).float(), self._texts(pairs)
        kept_video, kept_text = self.memory.features(rows)
        if self.config.target == "similarities":  # over the memory pairs of all workers
            video, text, kept_video, kept_text = (gather(x) for x in (video, text, kept_video, kept_text))
        with torch.autocast(video.device.type, enabled=False):
            if self.config.target == "similarities":
                return (self.base.score(text, video) - self.base.score(kept_text, kept_video)).square().mean()
            far = (video - kept_video).flatten(1).square().sum(-1) + (text - kept_text).flatten(1).square().sum(-1)
            return far.mean() / 2

    def _texts(self, batch: Batch) -> Tensor:
        """Encode each caption for the task of its pair; word features (B, N, d) are padded to the context length."""
        texts = self.base.encode_own_captions(batch).float()
        missing = backbone_of(self.base).text.context_length - texts.shape[1] if texts.ndim == 3 else 0
        return F.pad(texts, (0, 0, 0, missing)) if missing else texts
