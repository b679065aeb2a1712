"""DNS: linear heads on frozen towers; gradients are projected so that scores of previous pairs hardly change.

Liu et al., "Continual Multimodal Contrastive Learning", NeurIPS 2025, arXiv:2503.14963, after the authors' code
Xiaohao-Liu/CMCL@145fda6 (cmcl/dns.py); the text of the paper was not available. Captions and videos have a head
z = W x + b each. For a head with inputs x, z' are the outputs of the other head. Over all n pairs so far, after a task:

    C = mean x x',  C' = mean z' z''
    P = U U', U the eigenvectors of C with eigenvalues > threshold;  P' likewise of C' with eigenvalues > 0
    before a step:  G <- G - P' G P,  G the gradient of W

so that a step changes the scores x' W' z' of previous pairs in second order only. Like the released code, this file
weights the second moments of new pairs by their number, and does not compute C' of previous tasks again when W changes.
Biases are not projected.

Differences: the released loss has one direction, over dot products at temperature 1 (preset `released`). The default
here is the symmetric loss of cosines. Captions and videos may differ in width, so W of captions starts as the initial
map of backbone/vectors.py; the released code starts from the identity. Further modalities and their order are omitted.

Shapes: B pairs, d width of a video and of an output, d' width of a caption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, Task, l2_normalize
from ctvr.methods.heads import caption_vectors, initial_maps, video_vectors
from ctvr.methods.layers.feature_maps import svd
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.settings import require, setting

SIDES = ("text", "video")


@dataclass(frozen=True, kw_only=True)
class DNSConfig:
    """Settings of DNS, with ranges in search_spaces/."""

    lr: float = setting(1e-4, doc="learning rate of both heads (released code: 1e-4)", part="recipe")
    threshold: float = setting(
        0.1,
        doc="eigenvalue above which a direction is protected, because the features of previous pairs vary in it",
        later=True,
    )
    temperature: float = setting(0.07, doc="divisor of the similarities", unpublished=True, part="loss")
    similarity: Literal["cosine", "dot"] = setting(
        "cosine", doc="similarity between the outputs of captions and videos"
    )
    directions: Literal["both", "text_to_video"] = setting(
        "both", doc="directions of the contrastive loss", part="loss"
    )
    frame_norm: Literal["none", "l2"] = setting("none", doc="normalization of each frame's feature before the mean")

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use 0 to keep the initial maps.")
        require(self, ">= 0", "threshold", hint="Use 0 to protect every direction.")
        require(self, "> 0", "temperature")


class DNS(Method):
    """Frozen towers with two linear heads, whose gradients are projected onto the null space of previous pairs."""

    Config = DNSConfig
    ON_FEATURES = {"method.lr": 1e-3}
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "released": {
            "method.temperature": 1.0,
            "method.similarity": "dot",
            "method.directions": "text_to_video",
            "optim.name": "adamw",
            "optim.weight_decay": 0.0,
        },
    }
    OPTIMIZER = {"optim.weight_decay": 0.0}
    config: DNSConfig
    seen: Tensor  # () int64: number of pairs so far

    @classmethod
    def capabilities(cls, config: DNSConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, uses_all_parameters=True, accumulation="features")

    def __init__(self, config: DNSConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)
        heads = {}
        for side, (start, center) in zip(SIDES, initial_maps(backbone), strict=True):
            head = heads[side] = nn.Linear(*start.shape)
            with torch.no_grad():
                head.weight.copy_(start.mT)
                head.bias.copy_(-center @ start)
            self.register_buffer(f"inputs_{side}", torch.zeros(start.shape[0], start.shape[0]))
            self.register_buffer(f"others_{side}", torch.zeros(start.shape[1], start.shape[1]))
        self.heads = nn.ModuleDict(heads)
        self.register_buffer("seen", torch.tensor(0))
        self._used: dict[str, tuple[Tensor, Tensor]] = {}  # P' and P of each side, in the current task
        self._is_free = True  # the first task has no previous pairs

    def begin_task(self, task: Task) -> None:
        self._used, self._is_free = {}, task.index == 0

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="heads", params=list(self.heads.parameters()), lr=self.config.lr)]

    def scale(self) -> Tensor:
        return torch.full((), 1 / self.config.temperature, device=self.seen.device)

    # ------------------------------------------------------------------------------------ features

    def encode_video(self, frames: Tensor) -> Tensor:
        return self._out("video", self._video(frames))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self._out("text", caption_vectors(self.backbone, tokens))

    def _video(self, frames: Tensor) -> Tensor:
        return mean_pool(video_vectors(self.backbone, frames), self.config.frame_norm)

    def _out(self, side: str, x: Tensor) -> Tensor:
        z: Tensor = self.heads[side](x)
        return l2_normalize(z) if self.config.similarity == "cosine" else z

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self.config.directions == "both":
            return {"contrastive": self.info_nce(batch)}
        queries, videos = gather(self.encode_own_captions(batch)), gather(self.encode_video(batch.frames))
        logits = self.scale() * self.score(queries.float(), videos.float())
        return {"contrastive": F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))}

    # ----------------------------------------------------------------------------------- protection

    @torch.no_grad()
    def before_step(self) -> None:
        """Remove from the gradient of each head's weight the part that changes scores of previous pairs."""
        if self._is_free:
            return
        if not self._used:  # computed in the first step of a task, when a resumed run has loaded its buffers
            for side in SIDES:
                inputs, others = self.get_buffer(f"inputs_{side}"), self.get_buffer(f"others_{side}")
                self._used[side] = project_on(others, 0.0), project_on(inputs, self.config.threshold)
        for side, (of_others, of_inputs) in self._used.items():
            gradient = cast(nn.Linear, self.heads[side]).weight.grad
            if gradient is not None:
                gradient -= of_others @ gradient @ of_inputs

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Add the second moments of the task's pairs to C and C'; every worker receives all pairs."""
        found = [(caption_vectors(self.backbone, batch.tokens), self._video(batch.frames)) for batch in loader]
        if not found:
            return
        pairs = dict(zip(SIDES, (torch.cat(side) for side in zip(*found, strict=True)), strict=True))
        count = len(pairs["text"])
        total = self.seen + count
        for side, other in zip(SIDES, SIDES[::-1], strict=True):
            moment = pairs[side].mT @ pairs[side] / total
            weight = cast(nn.Linear, self.heads[side]).weight
            for name, new in ((f"inputs_{side}", moment), (f"others_{other}", weight @ moment @ weight.mT)):
                self.get_buffer(name).mul_(self.seen / total).add_(new)
        self.seen.copy_(total)


def project_on(moment: Tensor, threshold: float) -> Tensor:
    """Return the projection U U' (d, d) onto the singular vectors of `moment` with singular values > `threshold`.

    `moment` (d, d) is symmetric.
    """
    u, values, _ = svd(moment)
    return (u * (values > threshold)) @ u.mT
