"""LUMP on momentum contrast: every pair is mixed with a pair of a former task.

Madaan et al., "Representational Continuity for Unsupervised Continual Learning", arXiv:2110.06976, section 4,
as a competitor of BMU-MoCo (NeurIPS 2022, table 1, "LUMP"). One lambda ~ Beta(alpha, alpha) for each batch:

    V~ = lambda V + (1 - lambda) V^M  on pixels,   T~ = lambda T + (1 - lambda) T^M  on token embeddings
    L = L_moco(V~, T~) alone; keys are encoded from the mixed pairs and enter the queue

Token ids cannot be mixed, so captions are mixed after token and position embedding, and their pooling
weights by the same lambda. A mixed pair counts as the video that it holds more of. What we changed: LUMP
writes its memory while it trains; here pairs enter the reservoir when their task ends, so mixing starts
with the second task, as the shared first task of the paper's table implies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Batch, Method, RowWise
from methods.families.momentum import PAPER, SHAPES_WRAPPED, MomentumRetriever
from methods.families.strategy import ReplayConfig, ReplayStrategy, momentum_base
from methods.layers.gather import gather
from methods.layers.memory import Policy
from methods.layers.mixing import MixingConfig, draw_share, mix_features
from methods.layers.momentum import Encoders
from methods.layers.queues import Pair


@dataclass(frozen=True, kw_only=True)
class LUMPMoCoConfig(MixingConfig, ReplayConfig):
    """Tuned by search_spaces/lump_moco.py."""

    base: str = "base_moco"  # any method of methods/families/momentum.py
    buffer: Policy = "reservoir"  # as the original; ring: a place for each task

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        MixingConfig.__post_init__(self)


class LUMPMoCo(ReplayStrategy):
    """Learn between the present and the past."""

    Config = LUMPMoCoConfig
    PRESETS = {"paper": {**PAPER, "method.memory": 10_000}, "shapes": SHAPES_WRAPPED}
    needs_momentum = True
    config: LUMPMoCoConfig
    base: MomentumRetriever

    def __init__(self, config: LUMPMoCoConfig, base: Method) -> None:
        super().__init__(config, momentum_base(base, "lump_moco"))

    def row_wise(self) -> RowWise | str:
        if self.config.mix_level == "input":
            return "with method.mix_level=input captions are mixed within the text tower, a whole batch at once"
        return super().row_wise()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.draw(len(batch.videos))
        if not len(rows):
            return super().losses(batch)
        share = draw_share(self.config.alpha)
        return {"contrastive": self.mixed_contrast(batch, self.memory.batch(rows), share)}

    def mixed_contrast(self, batch: Batch, memory: Batch, share: float) -> Tensor:
        """The momentum-contrast loss of `share` of `batch` and the rest of `memory`, pair by pair."""
        queries = self._mix(self.base.encoders, batch, memory, share)
        with torch.no_grad():
            keys = [self._mix(momentum.encoders, batch, memory, share) for momentum in self.base.momenta]
        return self.base.contrast(queries, keys, gather(batch.videos if share >= 0.5 else memory.videos))

    def _mix(self, encoders: Encoders, batch: Batch, memory: Batch, share: float) -> Pair:
        if self.config.mix_level == "input":
            video = encoders.video(share * batch.frames + (1 - share) * memory.frames)
            return Pair(gather(video), gather(encoders.mixed_text(batch.tokens, memory.tokens, share)))
        pairs = zip(encoders.pair(batch.frames, batch.tokens), encoders.pair(memory.frames, memory.tokens))
        return Pair(*(mix_features(new, old, share) for new, old in pairs))
