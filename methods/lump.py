"""LUMP: mixes every pair of the batch with a stored pair of an earlier task.

Madaan et al., "Representational Continuity for Unsupervised Continual Learning", arXiv:2110.06976, section 4,
over any retriever; methods/lump_moco.py is the variant compared in BMU-MoCo's paper. One lambda ~ Beta(alpha, alpha)
for each batch:

    V~ = lambda V + (1 - lambda) V^M  on pixels,   T~ = lambda T + (1 - lambda) T^M  on token embeddings
    L = L_retriever(V~, T~), without a term for the unmixed batch

V and T are videos and captions of the batch, V^M and T^M those of the memory. A mixed pair has the video id, category
and caption length of the pair with the larger share.
Difference: LUMP writes its memory during training; here pairs enter the reservoir when their task ends, so mixing
starts with the second task. A mixed caption is encoded for the current task. Retrievers that rewrite captions before
they encode them (methods/lpi, and methods/camoe.py with sentences=rkw) need mix_level=feature.

LUMP keeps videos of earlier tasks, which the protocol of CTVR (arXiv:2503.10111) forbids. Tables therefore compare
methods with such a memory only with each other (`keeps_videos`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ctvr.methods.base import Batch, Method, Recipe, SeparableEncoders
from ctvr.methods.families.released_recipes import REPLAY_LEFT_OUT, sgd
from ctvr.methods.families.strategy import RESERVOIR, ReplayConfig, ReplayStrategy
from ctvr.methods.layers.replay.buffer import Policy
from ctvr.methods.layers.replay.mixup import MixingConfig, mixed_captions, mixed_features, sample_lambda
from ctvr.methods.settings import SettingError, setting

_FILE = "configs/simsiam_c10.yaml"
ORIGINAL = Recipe(
    "divyam3897/UCL@cfaa81d",
    {
        "method.buffer_size": (256, f"{_FILE}: buffer_size"),
        "method.buffer_policy": ("reservoir", "utils/buffer.py"),
        "method.alpha": (0.4, f"{_FILE}: alpha"),
        "method.mix_level": ("input", "models/mixup.py"),
        **sgd(
            0.03,
            200,
            256,
            f"{_FILE}: train",
            schedule=("constant", "models/utils/continual_model.py: the schedule is made and never stepped"),
            warmup=(0.0, "models/utils/continual_model.py: the schedule is made and never stepped"),
            grad_clip=(None, "models/mixup.py: there is none"),
            momentum=(0.9, f"{_FILE}: momentum"),
            weight_decay=(5e-4, f"{_FILE}: weight_decay"),
        ),
    },
    (
        *REPLAY_LEFT_OUT,
        "two augmented views of an image under SimSiam: here its video and its caption, and the retriever's loss",
        "one optimizer for all tasks: its momentum crosses them",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LUMPConfig(MixingConfig, ReplayConfig):
    """Settings of LUMP; no paper publishes values for retrieval."""

    UNPUBLISHED = ("method.buffer_size", "base.lr")

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    buffer_policy: Policy = setting("reservoir", doc=RESERVOIR, unpublished=True, part="loss")

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        MixingConfig.__post_init__(self)


class LUMP(ReplayStrategy):
    """Strategy that trains on mixtures of current and stored pairs."""

    Config = LUMPConfig
    PRESETS = {
        "paper": {},
        "original": ORIGINAL,
        "shapes": {"base.lr": 4e-6},  # with optim.lr_scale=50, for the small backbone
    }
    config: LUMPConfig

    @classmethod
    def check_base(cls, config: LUMPConfig, base: type[Method], base_config: Any) -> None:
        super().check_base(config, base, base_config)
        facts = base.capabilities(base_config)
        if config.mix_level == "input" and facts.rewrites_captions:
            raise SettingError(
                "captions are mixed unchanged, but the retriever rewrites them before it reads them",
                write="<mix_level>=feature",
            )
        if config.mix_level == "input" and facts.needs_umt:
            raise SettingError(
                "captions are mixed as they enter CLIP's text tower, but the retriever reads them differently",
                write="<mix_level>=feature",
            )

    def __init__(self, config: LUMPConfig, base: Method) -> None:
        super().__init__(config, base)
        if config.mix_level == "input":  # pixels are mixed before the first block
            self.frozen_blocks = 0

    def separable_encoders(self) -> SeparableEncoders | str:
        if self.config.mix_level == "input":
            return "with method.mix_level=input captions are mixed within the text tower, a whole batch at once"
        return super().separable_encoders()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.sample(len(batch.video_ids))
        if not len(rows):
            return self.base.losses(batch)
        memory = replace(self.memory.batch(rows), task_ids=None)  # a mixed caption does not belong to a single task
        return self.mixed(batch, memory, sample_lambda(self.config.alpha))

    def mixed(self, batch: Batch, memory: Batch, lam: float) -> dict[str, Tensor]:
        """Return the retriever's loss terms on the mixtures lam * `batch` + (1 - lam) * `memory` of pairs.

        Raises:
            ValueError: if the retriever does not support mixing at `mix_level`.
        """
        if lam < 0.5:
            batch, memory, lam = memory, batch, 1 - lam
        if self.config.mix_level == "input":
            pixels = lam * batch.frames + (1 - lam) * memory.frames
            with mixed_captions(self.base, batch.tokens, memory.tokens, lam):
                return self.base.losses(replace(batch, frames=pixels, unaugmented_video_ids=None))
        with (
            mixed_features(self.base, batch.frames, memory.frames, lam, "encode_video"),
            mixed_features(self.base, batch.tokens, memory.tokens, lam, "encode_text"),
        ):
            return self.base.losses(batch)
