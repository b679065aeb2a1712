"""PLEVU (Efficient-Prompt): learned vectors around the words of a caption, and a transformer over the frames.

Ju et al., "Prompting Visual-Language Models for Efficient Video Understanding", ECCV 2022, arXiv:2112.04478; row
"PLEVU" of TempMe's tables. Both towers follow the released code (ju-chen/Efficient-Prompt), which is for action
recognition. Captions in place of class names are our interpretation, because the code for retrieval is not public.

    caption: [start, a vectors, words, b vectors, end]; the vectors are rows of one table, indexed by position: rows
             1..a for the prefix, the rows after the last word for the postfix; then CLIP's positions are added
    video:   f_t = CLIP's feature of frame t, not normalized; `layers` transformer blocks over f + time; their mean
    S = unit(t) unit(v)^T, t and v: features of captions and videos
    loss = cross-entropy of S / tau, of both directions (released code: only of videos over captions)

CLIP is frozen. The new parts do not start at zero, so the initial model differs from CLIP. With two layers and 12
frames, 6,350,336 weights are trained; TempMe prints 6.35 M. If caption and vectors exceed the context length, the
caption is cut, and still ends with the end-of-text token.

Shapes: B videos or captions, T frames, L tokens of a caption, E width of the text tower, d joint embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState
from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, Recipe, l2_normalize
from ctvr.methods.families.tempme_family import PAPER
from ctvr.methods.layers.pooling import frame_mean
from ctvr.methods.layers.replay.mixup import last_end
from ctvr.methods.layers.transformer_block import new_block, passed
from ctvr.methods.settings import SettingError, require, setting

_COMMAND = "the documented command of HMDB51"
ORIGINAL = Recipe(
    "ju-chen/Efficient-Prompt (commit not recorded)",
    {
        "method.lr": (1e-4, _COMMAND),
        "method.prefix": (16, _COMMAND),
        "method.postfix": (16, _COMMAND),
        "method.layers": (1, _COMMAND),
        "method.num_frames": (16, _COMMAND),
        "method.tau": (0.07, "its loss, fixed"),
        "method.directions": ("video", "its loss: each video over the class names"),
        "optim.name": ("adamw", "torch's"),
        "optim.betas": ((0.9, 0.999), "torch's default"),
        "optim.eps": (1e-8, "torch's default"),
        "optim.weight_decay": (0.01, "torch's default"),
        "optim.decay_parameters": ("all", "one group"),
        "optim.grad_clip": (None, "there is none"),
        "optim.schedule": ("constant", "a cosine of 200,000 steps, of which 1,100 are taken"),
        "optim.warmup": (0.0, "there is none"),
        "data.batch_size": (64, _COMMAND),
        "data.num_frames": (16, _COMMAND),
    },
    (
        "1,100 iterations: optim.epochs counts passes over a task",
        "frames at a rate that is drawn, also at test, where five passes are averaged",
        "class names of the batch and others up to 400: here the captions of the batch",
        "ViT-B/16: a row has the backbone of its table",
    ),
)


@dataclass(frozen=True, kw_only=True)
class PLEVUConfig:
    """Settings of PLEVU, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.weight_decay",)

    lr: float = setting(1e-4, doc="learning rate of all new weights", unpublished=True, part="recipe")
    prefix: int = setting(16, doc="number of prefix tokens a, at most a quarter of the text length", unpublished=True)
    postfix: int = setting(16, doc="number of postfix tokens b, at most a quarter of the text length", unpublished=True)
    layers: int = setting(
        2,
        doc="number of transformer blocks over the frames; two give the parameter count in TempMe's paper, whereas "
        "the authors' documented command has one",
        unpublished=True,
    )
    heads: int = setting(8, doc="number of attention heads in the blocks over the frames")
    num_frames: int = setting(
        12, doc="maximum number of frames of a video, which is the number of learned frame positions"
    )
    tau: float = setting(
        0.07, doc="temperature of the contrastive loss, which is fixed and replaces CLIP's temperature", part="loss"
    )
    directions: Literal["both", "video"] = setting(
        "both",
        doc="directions of the contrastive loss. both: both directions; video: each video compared with all "
        "captions, as in the released code",
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use <lr>=0 to train nothing.")
        require(self, ">= 0", "prefix", "postfix", "layers", hint="Use 0 for none.")
        require(self, ">= 1", "heads", "num_frames")
        require(self, "> 0", "tau", hint="The release uses 0.07.")


class PLEVU(Method):
    """Frozen CLIP with learned vectors around the words of a caption and a small transformer over frames."""

    Config = PLEVUConfig
    PRESETS = {
        "paper": {**PAPER, "method.lr": 1e-4},  # the training of TempMe's tables, at the release's rate
        "original": ORIGINAL,
        "shapes": {"method.lr": 2e-5},  # with optim.lr_scale=50: 1e-3, the default of its code
    }

    @classmethod
    def capabilities(cls, config: PLEVUConfig) -> Capabilities:
        return Capabilities(accumulation="features", uses_all_parameters=True)

    def __init__(self, config: PLEVUConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone, self.max_frames = config, backbone, config.num_frames
        self.frozen_blocks = len(backbone.vision.blocks)
        text, width = backbone.text, backbone.embed_dim
        if width % config.heads:
            raise SettingError(
                f"<heads>={config.heads} do not divide the joint embedding's {width} dimensions", "Use 8."
            )
        most = text.context_length // 4
        self.around = min(config.prefix, most), min(config.postfix, most)  # a, b
        self.vectors = nn.Parameter(0.01 * torch.randn(text.context_length, text.width))
        self.times = nn.Parameter(0.01 * torch.randn(config.num_frames if config.layers else 0, width))
        self.frames = nn.ModuleList(new_block(width, config.heads) for _ in range(config.layers))

    def param_groups(self) -> list[ParamGroup]:
        added = [self.vectors, self.times, *self.frames.parameters()]
        return [ParamGroup(name="added", params=[p for p in added if p.numel()], lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        return l2_normalize(self.over_frames(self.backbone.vision(frames)))

    def over_frames(self, x: Tensor) -> Tensor:
        """Pool frame features (B, T, d) into features of videos (B, d), not normalized."""
        if len(self.frames):
            x = x + self.times[: x.shape[1]].to(x.dtype)
        for block in self.frames:
            x = passed(block, x)
        return frame_mean(x)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        text = self.backbone.text
        seams = [BlockSeams() for _ in text.blocks]
        seams[0] = BlockSeams(before=self.placed)
        last = partial(self.taken_back, tokens.shape[1])
        seams[-1] = BlockSeams(before=seams[-1].before, after=last)
        return l2_normalize(text(tokens, seams))

    def placed(self, x: Tensor, state: TokenState) -> Tensor:
        """Insert the vectors around the words of embedded captions (B, L, E): (B, L', E), L' <= context length."""
        table, (a, b), length = self.backbone.text.positional_embedding, self.around, x.shape[1]
        words = x - table[:length].to(x.dtype)  # without position embeddings, since positions change
        end = last_end(state)[:, None]  # (B, 1)
        at = self.end(end)
        place = torch.arange(min(length + a + b, len(table)), device=x.device)
        moved = torch.where(place == at, end, (place - a).clamp(min=0).where(place > 0, 0))
        is_word = (place == 0) | ((place > a) & (place < at - b)) | (place == at)  # (B, L')
        index = moved.expand_as(is_word).clamp(max=length - 1)[..., None].expand(-1, -1, x.shape[2])
        own = self.vectors[: len(place)].to(x.dtype)
        return torch.where(is_word[..., None], words.gather(1, index), own) + table[: len(place)].to(x.dtype)

    def end(self, end: Tensor) -> Tensor:
        """Return the position of the end-of-text token after the insertion, at most the last one of the context."""
        return (end + sum(self.around)).clamp(max=self.backbone.text.context_length - 1)

    def taken_back(self, length: int, x: Tensor, state: TokenState) -> Tensor:
        """Move tokens (B, L', E) back to their positions before the insertion: (B, L, E), without the vectors."""
        a, place = self.around[0], torch.arange(length, device=x.device)
        end = last_end(state)[:, None]
        index = torch.where(place == end, self.end(end), (place + a).where(place > 0, 0)).clamp(max=x.shape[1] - 1)
        return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))

    def scale(self) -> Tensor:
        return torch.full((), 1 / self.config.tau, device=self.backbone.logit_scale.device)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if self.config.directions == "both":
            return super().losses(batch)
        logits = self.logits(batch)
        return {"contrastive": F.cross_entropy(logits.mT, torch.arange(len(logits), device=logits.device))}
