"""MV-Adapter: a small adapter in every block of frozen CLIP; adapters of the vision tower attend across all frames.

Jin et al., "MV-Adapter: Multimodal Video Transfer Learning for Video Text Retrieval", CVPR 2024, as in the released
code (zhangbw17/MV-Adapter). It is a row of TempMe (arXiv:2409.01156, table 2, ViT-B/16). An adapter A
(methods/mv_adapter/adapters.py) follows the MLP of each block:

    x = x + y + A(y),  y = MLP(LN x),  A(y) = 0.1 (W_u s + b_u); W_u and b_u are initially 0, so the model is CLIP
    video:   z = phi(W_d y + b_d); class tokens, means of patches and a video token pass a transformer block, whose
             output calibrates the class tokens; patches bypass the block; s are class tokens and patches
    caption: z = W_d y + b_d; words pass a causal transformer block, whose output after phi is s
    in the last `tied` blocks a vector f, shared by both towers, scales outputs (down_out) or inputs (down_in) of W_d
    v = unit(mean over t of unit(f_t));  S = q v^T;  loss = InfoNCE of S exp(logit_scale), with fixed logit_scale

Adapters and the shared vectors are trained; all biases of CLIP are trained with a separate learning rate. These are
3,325,696 + 171,008 = 3,496,704 parameters for MSRVTT, 2.34 % of those of ViT-B/16. For MSVD with down_in they are
2.39 %, the 3.6 M parameters that TempMe prints. The published learning rates (5e-6, 1e-7) are for float16 weights
(docs/protocol.md); float32 weights change far less with them.

Differences: captions may be shorter than the table of position embeddings, which does not change their features; longer
captions are cut. With `mask_missing`, missing frames are masked, calibrated by 0 and excluded from the mean. If a video
has fewer frames than the table allows, the position embeddings of patch means shift, as in the released code.

Shapes: B videos or captions, T frames, N tokens of a frame, L tokens of a caption, D width, d joint embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState
from ctvr.methods.base import Capabilities, Method, Override, ParamGroup, Recipe, l2_normalize
from ctvr.methods.families.tempme_family import PAPER
from ctvr.methods.layers.missing_frames import frames_there
from ctvr.methods.layers.pooling import frame_mean, frame_sum
from ctvr.methods.layers.transfer import truncate
from ctvr.methods.mv_adapter.adapters import FACTOR, TextAdapter, Tying, VideoAdapter
from ctvr.methods.settings import SettingError, require, setting

_CONFIG = "the configuration of MSRVTT"
ORIGINAL = Recipe(
    "zhangbw17/MV-Adapter (commit not recorded)",
    {
        "method.lr": (5e-6, f"{_CONFIG}: a rate of float16 weights"),
        "method.lr_bias": (1e-7, f"{_CONFIG}: a rate of float16 weights"),
        "method.tied": (2, f"{_CONFIG}: modal_dynamic, blocks 10 and 11"),
        "method.tying": ("down_out", f'{_CONFIG}: modal_dynamic, "down out"'),
        "method.mask_missing": (True, "fewer frames than asked for are filled with zeros and masked"),
        "optim.name": ("bert_adam", "its optimizer, without correction of the bias"),
        "optim.betas": ((0.9, 0.98), "its optimizer"),
        "optim.eps": (1e-6, "its optimizer"),
        "optim.weight_decay": (0.2, "its groups"),
        "optim.decay_parameters": ("no_bias", "its groups, of the adapters; biases of CLIP decay"),
        "optim.schedule": ("cosine_uncorrected_warmup", "its schedule, not restarted after the warm-up"),
        "optim.least": (0.0, "its schedule"),
        "optim.warmup": (0.1, "its schedule"),
        "optim.warmup_from": ("zero", "its schedule: the first step has rate 0"),
        "optim.grad_clip": (1.0, "of all, then of each tensor"),
        "optim.epochs": (5, _CONFIG),
        "data.batch_size": (16, f"{_CONFIG}: of each worker, of whose number nothing is said"),
        "data.num_frames": (12, _CONFIG),
        "data.max_tokens": (32, _CONFIG),
    },
    (
        "weights, gradients and moments in float16, the adapters' too (docs/protocol.md)",
        "frames are number i n // T of n, so the first always and the last never",
        "over W workers the gradient is 1/W of the whole one",
        "DiDeMo and ActivityNet: their configurations name a class that is not in the code",
    ),
)


@dataclass(frozen=True, kw_only=True)
class MVAdapterConfig:
    """Settings of MV-Adapter; preset `original` has the values of the released code for MSRVTT."""

    lr: float = setting(5e-6, doc="learning rate of adapters and shared vectors", unpublished=True, part="recipe")
    lr_bias: float = setting(
        1e-7, doc="learning rate of all biases of CLIP; 0: the biases are not trained", unpublished=True, part="recipe"
    )
    bottleneck: int = setting(64, doc="width m of an adapter")
    heads: int = setting(2, doc="number of attention heads of the transformer block in an adapter")
    tied: int = setting(2, doc="number of last blocks in which both towers share a vector (LSMDC: 3, ActivityNet: 1)")
    tying: Tying = setting(
        "down_out",
        doc="side of the down projection that the shared vector scales. down_out: its outputs; down_in: its inputs "
        "(MSVD, LSMDC, ActivityNet); none: no shared vector",
    )
    num_frames: int = setting(12, doc="maximum number of frames of a video")
    num_words: int = setting(32, doc="maximum number of tokens of a caption; longer captions are cut")
    mask_missing: bool = setting(
        False,
        doc="whether to mask all-zero frames at the end of a video, which data.sampling=one_per_second creates",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", "lr_bias", hint="Use 0 to disable training of these weights.")
        require(self, ">= 1", "heads", hint="Use 2.")
        if self.bottleneck < 1 or self.bottleneck % self.heads:
            raise SettingError(
                f"<bottleneck> must be a multiple of heads, got {self.bottleneck} and {self.heads}", "Use 64 and 2."
            )
        require(self, ">= 0", "tied", hint="Use 0 for no shared vectors.")
        require(self, ">= 1", "num_frames")
        require(self, ">= 3", "num_words", hint="The paper uses 32.")


class MVAdapter(Method):
    """Frozen CLIP with trained biases and adapters, which share vectors in the last blocks of both towers."""

    Config = MVAdapterConfig
    PRESETS = {
        "paper": PAPER,  # training recipe of TempMe's tables
        "original": ORIGINAL,
        "shapes": {"method.lr": 2e-5, "method.lr_bias": 2e-6},  # with optim.lr_scale=50 they are 1e-3 and 1e-4
        "down_in": Override({"method.tying": "down_in"}),
    }

    @classmethod
    def capabilities(cls, config: MVAdapterConfig) -> Capabilities:
        return Capabilities(uses_all_parameters=True, masks_missing_frames=config.mask_missing)

    def __init__(self, config: MVAdapterConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone, self.max_frames = config, backbone, config.num_frames
        vision, text = backbone.vision, backbone.text
        tied = 0 if config.tying == "none" else min(config.tied, len(vision.blocks), len(text.blocks))
        self.shared = nn.Parameter(torch.zeros(tied, FACTOR))

        def make_adapters(cls: Any, width: int, blocks: int, places: int) -> nn.ModuleList:
            first = blocks - tied
            kinds = [config.tying if block >= first else "none" for block in range(blocks)]
            return nn.ModuleList(cls(width, config.bottleneck, config.heads, places, kind) for kind in kinds)

        self.video = make_adapters(VideoAdapter, vision.width, len(vision.blocks), config.num_frames)
        self.text = make_adapters(TextAdapter, text.width, len(text.blocks), config.num_words)

    def param_groups(self) -> list[ParamGroup]:
        own = [self.shared, *self.video.parameters(), *self.text.parameters()]
        own = [parameter for parameter in own if parameter.numel()]
        biases = [p for name, p in self.backbone.named_parameters() if "bias" in name]
        groups: list[ParamGroup] = [ParamGroup(name="adapters", params=own, lr=self.config.lr)]
        if self.config.lr_bias:
            groups.append(ParamGroup(name="biases", params=biases, lr=self.config.lr_bias, decay="all"))
        return groups

    def _shared(self, block: int, blocks: int) -> Tensor | None:
        """Return the shared vector (32,) of block `block` in a tower of `blocks` blocks; None if it has none."""
        number = block - (blocks - len(self.shared))
        return self.shared[number] if number >= 0 else None

    def encode_video(self, frames: Tensor) -> Tensor:
        there = None
        if self.config.mask_missing:
            places = torch.arange(frames.shape[1], device=frames.device)
            there = places < frames_there(frames)[:, None]  # (B, T)
        seams = [BlockSeams(mlp=partial(self._video, adapter, there)) for adapter in self.video]
        each = l2_normalize(self.backbone.vision(frames, seams))  # (B, T, d)
        return l2_normalize(frame_mean(each) if there is None else frame_sum(each * there[..., None]))

    def _video(self, adapter: Any, there: Tensor | None, y: Tensor, output: Tensor, state: TokenState) -> Tensor:
        shared = self._shared(state.layer, len(self.video))
        state.extra_macs += adapter.extra(state.batch, state.frames, output.shape[1])
        added: Tensor = adapter(output.unflatten(0, (state.batch, state.frames)), there, shared)
        return output + added.flatten(0, 1)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        seams = [BlockSeams(mlp=partial(self._text, adapter)) for adapter in self.text]
        return l2_normalize(self.backbone.text(truncate(tokens, self.config.num_words), seams))

    def _text(self, adapter: Any, y: Tensor, output: Tensor, state: TokenState) -> Tensor:
        added: Tensor = adapter(output, self._shared(state.layer, len(self.text)))
        return output + added
