"""DualPrompt: general prompts that all tasks share, and expert prompts for each task, selected by a key.

Wang et al., "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", arXiv:2204.04799:

    blocks 0 .. G-1 get the general prompt, the next E blocks get the expert prompt of task t
    loss = L + lambda (1 - cos(q(x), k_t))         q(x): query of input x, k_t: key of task t
    at test, t is the task whose key is nearest to q(x)

What we changed: prompts are tokens (the paper's prompt tuning; its default is prefix tuning), and only videos have
them; captions are encoded by CLIP. The query is the feature of a video. A task starts from the prompt and the key of
the previous task, so that outputs do not change before its training; in the authors' code, only from the prompt. At
test, that code selects one prompt for a batch of images, by majority; here a prompt is selected for each video.
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
class DualPromptConfig:
    """Settings of DualPrompt."""

    lr: float = setting(1e-4, doc="learning rate of prompts and keys")
    length: int = setting(4, doc="number of tokens of a prompt")
    general: int = setting(1, doc="number G of leading vision blocks with the general prompt; 2 in the authors' code")
    expert: int = setting(2, doc="number E of the next vision blocks, with an expert prompt; 3 in the authors' code")
    pull: float = setting(1.0, doc="weight lambda of the distance between queries and the key of their task")

    def __post_init__(self) -> None:
        require(self, ">= 1", "length", "general", "expert")
        require(self, ">= 0", "pull", "lr")


class DualPrompt(Method):
    """Frozen CLIP with general and expert prompts."""

    Config = DualPromptConfig

    @classmethod
    def capabilities(cls, config: DualPromptConfig) -> Capabilities:
        return Capabilities(text_is_frozen=True)

    def __init__(self, config: DualPromptConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.general = nn.Parameter(self._new(config.general))
        self.experts, self.keys = nn.ParameterList(), nn.ParameterList()

    def _new(self, blocks: int) -> Tensor:
        return 0.02 * torch.randn(blocks, self.config.length, self.backbone.vision.width)

    def begin_task(self, task: Task) -> None:
        is_first = task.index == 0  # later tasks start from the prompt and the key of the previous task
        self.experts.append(self._new(self.config.expert) if is_first else self.experts[-1].detach().clone())
        self.keys.append(torch.randn(self.backbone.embed_dim) if is_first else self.keys[-1].detach().clone())

    def param_groups(self) -> list[ParamGroup]:
        return [{"name": "prompts", "params": [self.general, self.experts[-1], self.keys[-1]], "lr": self.config.lr}]

    def _cosines(self, frames: Tensor) -> Tensor:
        """Return the cosines (B, tasks) between the query of each video and the key of each task."""
        with torch.no_grad():
            query = mean_pool(self.backbone.vision(frames))
        return query @ l2_normalize(torch.stack(list(self.keys))).mT

    def _encode(self, frames: Tensor, tasks: Tensor) -> Tensor:
        expert = torch.stack(list(self.experts))[tasks].repeat_interleave(frames.shape[1], dim=0)  # (B*T, E, length, D)
        prompts = [*self.general, *expert.unbind(1)][: len(self.backbone.vision.blocks)]
        seams = [BlockSeams(before=insert_prompts(p), after=drop_prompts(p.shape[-2])) for p in prompts]
        rest = [None] * (len(self.backbone.vision.blocks) - len(seams))
        return mean_pool(self.backbone.vision(frames, [*seams, *rest]))

    def encode_video(self, frames: Tensor) -> Tensor:
        nearest = self._cosines(frames).argmax(dim=1)
        newest = torch.full_like(nearest, len(self.keys) - 1)
        return self._encode(frames, newest if self.training else nearest)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {**super().losses(batch), "pull": self.config.pull * (1 - self._cosines(batch.frames)[:, -1]).mean()}
