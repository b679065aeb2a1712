"""CODA-Prompt: a prompt is a weighted sum of components, and every task adds components.

Smith et al., "CODA-Prompt: Continual Decomposed Attention-based Prompting", arXiv:2211.13218:

    p = sum of alpha_m P_m                        prompt
    alpha_m = cos(q(x) * A_m, K_m)                weight; A_m: attention of component m, K_m: its key
    loss = L + lambda (m(P P' - I) + m(K K' - I) + m(A A' - I))      orthogonality; m: mean of squares

Components of earlier tasks are frozen. What we changed: the orthogonality is a mean instead of a sum, and prompts are
tokens in the first `depth` vision blocks. New components are zero, so that they do not change prompts before their
training. Captions are encoded by CLIP.
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
    l2_normalize,
    mean_pool,
    require,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class CodaPromptConfig:
    """Settings."""

    lr: float = setting(1e-4, doc="learning rate")
    components: int = setting(4, doc="number of components that a task adds")
    length: int = setting(4, doc="number of tokens of a prompt")
    depth: int = setting(2, doc="number of leading vision blocks with prompts", depth=True)
    ortho: float = setting(0.1, doc="weight lambda of the orthogonality")

    def __post_init__(self) -> None:
        require(self, ">= 1", "components", "length", "depth")
        require(self, ">= 0", "ortho", "lr")


class CodaPrompt(Method):
    """Frozen CLIP with decomposed prompts."""

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
        m, d = self.config.components, self.backbone.embed_dim
        self.prompts.append(torch.zeros(m, self.depth, self.config.length, self.backbone.vision.width))
        self.keys.append(torch.randn(m, d) / d**0.5)
        self.attention.append(torch.randn(m, d) / d**0.5)

    def param_groups(self) -> list[ParamGroup]:
        newest = [self.prompts[-1], self.keys[-1], self.attention[-1]]
        return [{"name": "components", "params": newest, "lr": self.config.lr}]

    def encode_video(self, frames: Tensor) -> Tensor:
        if not len(self.prompts):
            return mean_pool(self.backbone.vision(frames))
        with torch.no_grad():
            query = mean_pool(self.backbone.vision(frames))
        prompts, keys, attention = (torch.cat(list(x)) for x in (self.prompts, self.keys, self.attention))
        alpha = (l2_normalize(query[:, None] * attention) * l2_normalize(keys)).sum(-1)  # (B, components)
        prompt = torch.einsum("bm,mltd->bltd", alpha, prompts).repeat_interleave(frames.shape[1], dim=0)
        rest = [None] * (len(self.backbone.vision.blocks) - self.depth)
        return mean_pool(self.backbone.vision(frames, [*(_prompted(p) for p in prompt.unbind(1)), *rest]))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        parts = (torch.cat([x.flatten(1) for x in part]) for part in (self.prompts, self.keys, self.attention))
        penalty = sum((x @ x.mT - torch.eye(len(x), device=x.device)).square().mean() for x in parts)
        return {**super().losses(batch), "ortho": self.config.ortho * penalty}


def _prompted(p: Tensor) -> BlockSeams:
    """Insert prompts (B*T, length, D) after the class token before a block, and remove them after the block."""
    return BlockSeams(
        before=lambda x, state: torch.cat([x[:, :1], p.to(x.dtype), x[:, 1:]], dim=1),
        after=lambda x, state: torch.cat([x[:, :1], x[:, 1 + p.shape[1] :]], dim=1),
    )
