"""CODA-Prompt: a prompt is a weighted sum of components, and every task adds components.

Smith et al., "CODA-Prompt: Continual Decomposed Attention-based Prompting", arXiv:2211.13218:

    p = sum of alpha_m P_m                        prompt of component m: P_m
    alpha_m = cos(q(x) * A_m, K_m)                weight; q(x): query, A_m: attention of component m, K_m: its key
    loss = L + lambda sum over blocks of (S(P P' - I) + S(K K' - I) + S(A A' - I))       S: mean of squares

Every block has its own P, K and A, and components of earlier tasks are frozen. The authors' code also has the mean S.
What we changed: prompts are tokens in the first `depth` vision blocks; the authors use prefix tuning in five. The query
is the feature of a video. New components are zero, so that they do not change prompts before their training, and their
keys are random; the authors' code makes both orthogonal to earlier ones. Captions are encoded by CLIP.
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
    Task,
    drop_prompts,
    insert_prompts,
    l2_normalize,
    mean_pool,
    require,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class CodaPromptConfig:
    """Settings of CODA-Prompt."""

    lr: float = setting(1e-4, doc="learning rate")
    components: int = setting(4, doc="number of components that a task adds")
    length: int = setting(4, doc="number of tokens of a prompt")
    depth: int = setting(2, doc="number of leading vision blocks with prompts", depth=True)
    ortho: float = setting(0.1, doc="weight lambda of the orthogonality")

    def __post_init__(self) -> None:
        require(self, ">= 1", "components", "length", "depth")
        require(self, ">= 0", "ortho", "lr")


class CodaPrompt(Method):
    """Frozen CLIP with prompts that are weighted sums of components."""

    Config = CodaPromptConfig

    @classmethod
    def capabilities(cls, config: CodaPromptConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True, uses_all_parameters=True)

    def __init__(self, config: CodaPromptConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.prompts, self.keys, self.attention = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        self.depth = min(config.depth, len(backbone.vision.blocks))

    def begin_task(self, task: Task) -> None:
        m, k, d = self.config.components, self.depth, self.backbone.embed_dim
        self.prompts.append(torch.zeros(m, k, self.config.length, self.backbone.vision.width))
        self.keys.append(torch.randn(m, k, d) / d**0.5)
        self.attention.append(torch.randn(m, k, d) / d**0.5)

    def param_groups(self) -> list[ParamGroup]:
        newest = [self.prompts[-1], self.keys[-1], self.attention[-1]]
        return [{"name": "components", "params": newest, "lr": self.config.lr}]

    def encode_video(self, frames: Tensor) -> Tensor:
        if not len(self.prompts):
            return mean_pool(self.backbone.vision(frames))
        with torch.no_grad():
            query = mean_pool(self.backbone.vision(frames))
        prompts = self._assemble(query).repeat_interleave(frames.shape[1], dim=0).unbind(1)
        seams = [BlockSeams(before=insert_prompts(p), after=drop_prompts(p.shape[1])) for p in prompts]
        rest = [None] * (len(self.backbone.vision.blocks) - self.depth)
        return mean_pool(self.backbone.vision(frames, [*seams, *rest]))

    def _assemble(self, query: Tensor) -> Tensor:
        """Return the prompts (B, depth, length, D) of queries (B, d)."""
        prompts, keys, attention = (torch.cat(list(x)) for x in (self.prompts, self.keys, self.attention))
        alpha = (l2_normalize(query[:, None, None] * attention) * l2_normalize(keys)).sum(-1)  # (B, components, depth)
        return torch.einsum("bmk,mkld->bkld", alpha, prompts)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        every = (self.prompts, self.keys, self.attention)
        parts = (torch.cat([x.flatten(2) for x in part]).transpose(0, 1) for part in every)
        penalty = sum((x @ x.mT - torch.eye(x.shape[1], device=x.device)).square().mean((1, 2)).sum() for x in parts)
        return {**super().losses(batch), "ortho": self.config.ortho * penalty}
