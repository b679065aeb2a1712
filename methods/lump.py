"""LUMP: every pair is mixed with a pair of a former task.

Madaan et al., "Representational Continuity for Unsupervised Continual Learning", arXiv:2110.06976, section 4,
over any retriever; methods/lump_moco.py is the same as a competitor of BMU-MoCo. One lambda ~ Beta(alpha, alpha)
for each batch:

    V~ = lambda V + (1 - lambda) V^M  on pixels,   T~ = lambda T + (1 - lambda) T^M  on token embeddings
    L = L_retriever(V~, T~) alone; the batch as it was has no loss of its own

A mixed pair counts as the one that it holds more of: as that one's video, category and number of words. What we
changed: LUMP writes its memory while it trains; here pairs enter the reservoir when their task ends, so mixing
starts with the second task. Retrievers that rewrite captions before they read them (methods/camoe.py with
sentences=rkw) need mix_level=feature.

It keeps videos of former tasks, which the protocol of CTVR (arXiv:2503.10111) forbids: its rows belong
apart from those of methods that keep features only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from methods.base import Batch, Method, RowWise
from methods.families.strategy import ReplayConfig, ReplayStrategy
from methods.layers.memory import Policy
from methods.layers.mixing import MixingConfig, draw_share, mixed_captions, mixed_features


@dataclass(frozen=True, kw_only=True)
class LUMPConfig(MixingConfig, ReplayConfig):
    """Nothing of it is published for retrieval."""

    base: str = "clip4clip"  # any retriever; its settings are base.*
    buffer: Policy = "reservoir"  # as the original; ring: a place for each task

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        MixingConfig.__post_init__(self)


class LUMP(ReplayStrategy):
    """Learn between the present and the past."""

    Config = LUMPConfig
    PRESETS = {"paper": {}, "shapes": {"base.lr": 4e-6}}  # shapes: with optim.lr_scale=50, for the small backbone
    config: LUMPConfig

    def __init__(self, config: LUMPConfig, base: Method) -> None:
        super().__init__(config, base)

    def row_wise(self) -> RowWise | str:
        if self.config.mix_level == "input":
            return "with method.mix_level=input a mixed caption depends on the longest one of its batch"
        return super().row_wise()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.memory.draw(len(batch.videos))
        if not len(rows):
            return self.base.losses(batch)
        return self.mixed(batch, self.memory.batch(rows), draw_share(self.config.alpha, batch.frames.device))

    def mixed(self, batch: Batch, memory: Batch, share: float) -> dict[str, Tensor]:
        """The retriever's losses of `share` of `batch` and the rest of `memory`, pair by pair.

        Raises:
            ValueError: if the retriever lets nobody mix at `mix_level`.
        """
        if share < 0.5:
            batch, memory, share = memory, batch, 1 - share
        if self.config.mix_level == "input":
            pixels = share * batch.frames + (1 - share) * memory.frames
            with mixed_captions(self.base, batch.tokens, memory.tokens, share):
                return self.base.losses(replace(batch, frames=pixels))
        with (
            mixed_features(self.base, batch.frames, memory.frames, share, "encode_video"),
            mixed_features(self.base, batch.tokens, memory.tokens, share, "encode_text"),
        ):
            return self.base.losses(batch)
