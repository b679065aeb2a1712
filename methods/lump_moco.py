"""LUMP on momentum contrast: every pair of the batch is mixed with a stored pair of an earlier task.

Madaan et al., "Representational Continuity for Unsupervised Continual Learning", arXiv:2110.06976, section 4,
as a competitor of BMU-MoCo (NeurIPS 2022, table 1, "LUMP"). One lambda ~ Beta(alpha, alpha) for each batch:

    V~ = lambda V + (1 - lambda) V^M  on pixels,   T~ = lambda T + (1 - lambda) T^M  on token embeddings
    L = L_moco(V~, T~); keys are encoded from the mixed pairs and enter the queue

V and T are videos and captions of the batch, V^M and T^M those of the memory. Token ids cannot be mixed, so captions
are mixed after the token and position embedding, and their pooling weights with the same lambda. A mixed pair has the
video id of the pair with the larger share. Difference: LUMP writes its memory during training; here pairs enter the
reservoir when their task ends, so mixing starts with the second task. The table's shared first task implies this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Method, SeparableEncoders
from ctvr.methods.families.momentum import MOCO_UNPUBLISHED, PAPER, SHAPES_WRAPPED, MomentumRetriever
from ctvr.methods.families.strategy import RESERVOIR, ReplayConfig, ReplayStrategy
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.replay.buffer import Policy
from ctvr.methods.layers.replay.mixup import MixingConfig, mix_features, sample_lambda
from ctvr.methods.layers.replay.momentum import Encoders
from ctvr.methods.layers.replay.queues import Pair
from ctvr.methods.settings import setting


@dataclass(frozen=True, kw_only=True)
class LUMPMoCoConfig(MixingConfig, ReplayConfig):
    """Settings of LUMP on momentum contrast, with ranges in search_spaces/."""

    UNPUBLISHED = MOCO_UNPUBLISHED

    base: str = setting("base_moco", doc="name of the wrapped momentum-contrast retriever, whose settings are base.*")
    buffer_policy: Policy = setting("reservoir", doc=RESERVOIR, part="loss")

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        MixingConfig.__post_init__(self)


class LUMPMoCo(ReplayStrategy):
    """Strategy for a momentum retriever that trains on mixtures of current and stored pairs."""

    Config = LUMPMoCoConfig
    PRESETS = {"paper": {**PAPER, "method.buffer_size": 10_000}, "shapes": SHAPES_WRAPPED}
    needs_momentum = True
    config: LUMPMoCoConfig
    base: MomentumRetriever

    def __init__(self, config: LUMPMoCoConfig, base: Method) -> None:
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
            return super().losses(batch)
        lam = sample_lambda(self.config.alpha)
        return {"contrastive": self.mixed_contrast(batch, self.memory.batch(rows), lam)}

    def mixed_contrast(self, batch: Batch, memory: Batch, lam: float) -> Tensor:
        """Compute the momentum-contrast loss, a scalar, of the mixtures lam * `batch` + (1 - lam) * `memory`."""
        queries = self._mix(self.base.encoders, batch, memory, lam)
        with torch.no_grad():
            keys = [self._mix(momentum.encoders, batch, memory, lam) for momentum in self.base.momenta]
        return self.base.contrast(queries, keys, gather(batch.video_ids if lam >= 0.5 else memory.video_ids))

    def _mix(self, encoders: Encoders, batch: Batch, memory: Batch, lam: float) -> Pair:
        if self.config.mix_level == "input":
            video = encoders.video(lam * batch.frames + (1 - lam) * memory.frames)
            return Pair(gather(video), gather(encoders.mixed_text(batch.tokens, memory.tokens, lam)))
        pairs = zip(encoders.pair(batch.frames, batch.tokens), encoders.pair(memory.frames, memory.tokens))
        return Pair(*(mix_features(new, old, lam) for new, old in pairs))
