"""L2P: a pool of prompts for the frozen image tower of CLIP, from which each video selects some by their keys.

Wang et al., "Learning to Prompt for Continual Learning", arXiv:2112.08654:

    chosen = the N keys k with the largest cos(q(x), k)             eq. 3; q: feature of the frozen tower
    tokens = [class, prompts of the chosen keys, patches]           eq. 2
    loss   = L(x) + lambda sum over chosen k of (1 - cos(q(x), k))  eq. 5

What we changed: the query is the feature of a video, which selects the same prompts for all of its frames. A frame's
feature is the output at its class token, for which CLIP's projection was trained; the paper averages the outputs at the
prompts. Captions are encoded by CLIP. The paper's optional eq. 4 (a penalty for prompts that were chosen often) is
omitted. The authors' code selects the same prompts for a batch of images, by majority; here, as in the paper, prompts
are selected for each video.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr import (
    Batch,
    BlockSeams,
    Capabilities,
    Clip,
    Method,
    ParamGroup,
    insert_prompts,
    l2_normalize,
    mean_pool,
    require,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class L2PConfig:
    """Settings of L2P."""

    lr: float = setting(1e-4, doc="learning rate of prompts and keys")
    pool: int = setting(10, doc="number of prompts in the pool")
    length: int = setting(5, doc="number of tokens of a prompt")
    top: int = setting(5, doc="number N of prompts of a video", at_most="pool")
    pull: float = setting(0.5, doc="weight lambda of the distance between queries and chosen keys")

    def __post_init__(self) -> None:
        require(self, ">= 1", "pool", "length", "top")
        require(self, ">= 0", "pull", "lr")


class L2P(Method):
    """Frozen CLIP with a pool of prompts."""

    Config = L2PConfig

    @classmethod
    def capabilities(cls, config: L2PConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True)

    def __init__(self, config: L2PConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.prompts = nn.Parameter(0.02 * torch.randn(config.pool, config.length, backbone.vision.width))
        self.keys = nn.Parameter(torch.randn(config.pool, backbone.embed_dim))

    def param_groups(self) -> list[ParamGroup]:
        return [{"name": "pool", "params": [self.prompts, self.keys], "lr": self.config.lr}]

    def _choose(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines of the N chosen keys with each video's query, and the keys' indices, (B, N) each."""
        with torch.no_grad():
            query = mean_pool(self.backbone.vision(frames))
        cosines, chosen = (query @ l2_normalize(self.keys).mT).topk(min(self.config.top, self.config.pool), dim=1)
        return cosines, chosen

    def _encode(self, frames: Tensor, chosen: Tensor) -> Tensor:
        prompts = self.prompts[chosen].flatten(1, 2).repeat_interleave(frames.shape[1], dim=0)  # (B*T, N * length, D)
        first = BlockSeams(before=insert_prompts(prompts))
        others = [None] * (len(self.backbone.vision.blocks) - 1)
        return mean_pool(self.backbone.vision(frames, [first, *others]))

    def encode_video(self, frames: Tensor) -> Tensor:
        return self._encode(frames, self._choose(frames)[1])

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        distances = (1 - self._choose(batch.frames)[0]).sum(1)
        return {**super().losses(batch), "pull": self.config.pull * distances.mean()}
