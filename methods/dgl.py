"""DGL: frozen CLIP with local prompts in every frame and global prompts that attend to the whole video.

Yang et al., "DGL: Dynamic Global-Local Prompt Tuning for Text-Video Retrieval", AAAI 2024, as in its code
(knightyxp/DGL); rows DGL^L and DGL^T of TempMe (arXiv:2409.01156, tables 2, 3, 4 and 17).
    video    = [G global prompts, then for each frame: class, P local prompts, patches], concatenated after ln_pre
    in block k, with CLIP's weights: a global prompt attends to all tokens; a token of a frame to the global prompts
    and to its own frame. Each block replaces the local prompts by its own; global prompts are inserted once and kept
    v        = unit(proj(ln_post(the first global prompt)))
    caption  = [start, P prefix, words, padding, P postfix] with the prompts of block k; words keep their positions
    S = q v^T;  loss = InfoNCE of S exp(logit_scale), mean of both directions, logit_scale frozen

The setting `prompts` selects the source of the prompts. `linear` learns local prompts p_k, which are equal in all
frames; prefix prompts are A p_k + a, postfix prompts B p_k + b. `transformer` learns 2P + P T vectors for each layer,
which one transformer block mixes within the layer. An MLP maps the first 2P of them to text prompts, and the others are
the local prompts of exactly T frames.

Postfix prompts do not have an effect: they follow the end-of-text token, which is read, and attention is causal. A and
B of `linear` are the larger part of its 827,392 weights, and B (393,728) always has gradient 0, as in the release.
Differences: keys and values are projected once. The release projects them for each frame and again for the global
prompts, with equal features; this explains the 67.4 GFLOPs in TempMe. Every worker gets the whole gradient of the loss.

Shapes: B videos or captions, T frames, K blocks, G = P prompts, N tokens of a frame, D and E widths of the towers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState, VisionTower, run_block
from ctvr.methods.backbone.quick_gelu import QuickGELU
from ctvr.methods.base import Capabilities, Method, Override, ParamGroup, Recipe, Task, l2_normalize
from ctvr.methods.families.tempme_family import PAPER
from ctvr.methods.layers.global_tokens import block_of_video
from ctvr.methods.layers.transformer_block import new_block, passed
from ctvr.methods.settings import require, setting

# scripts/msrvtt.sh uses prompts=transformer; the scripts of LSMDC, ActivityNet and VATEX (lr 5e-3) use linear
_SHARED = {
    "method.num_prompts": (4, "modules/clip.py: both numbers of prompts"),
    "method.readout": ("global", "params.py: --visual_output_type global_prompt0"),
    "optim.name": ("adamw", "the optimizer of its training script"),
    "optim.betas": ((0.9, 0.98), "the optimizer of its training script"),
    "optim.eps": (1e-6, "the optimizer of its training script"),
    "optim.weight_decay": (0.2, "params.py: --weight_decay"),
    "optim.decay_parameters": ("no_bias", "the groups of its training script: all but names with bias"),
    "optim.schedule": ("cosine", "its schedule, after the warm-up"),
    "optim.warmup": (0.1, "its schedule: a tenth of the steps"),
    "optim.warmup_from": ("zero", "its schedule: the first step has 1e-8"),
    "optim.final_lr": (1e-8, "its schedule: the least rate"),
    "optim.grad_clip": (1.0, "its training script, over all gradients"),
    "data.num_frames": (12, "scripts: --max_frames"),
    "data.sampling": ("random", "its data loader: one random frame of each segment in training, the middle at test"),
    "data.max_tokens": (32, "scripts: --max_words"),
}
_LEFT_OUT = (
    "videos are stored at 3 frames per second",
    "mixed precision with loss scaling",
    "the best epoch is chosen on the test set",
    "1e-8 is added to every rate of the warm-up",
)
_CODE = "knightyxp/DGL (commit not recorded)"
LINEAR = Recipe(
    _CODE,
    {
        "method.prompts": ("linear", "scripts/lsmdc.sh"),
        "method.lr": (1e-2, "scripts/lsmdc.sh, activitynet.sh: --lr"),
        **_SHARED,
        "optim.epochs": (10, "scripts/lsmdc.sh: --epochs"),
        "data.batch_size": (64, "scripts/lsmdc.sh: --batch_size"),
    },
    (*_LEFT_OUT, "the command of MSR-VTT: it is of the transformer alone"),
)
TRANSFORMER = Recipe(
    _CODE,
    {
        "method.prompts": ("transformer", "scripts/msrvtt.sh"),
        "method.lr": (2e-3, "scripts/msrvtt.sh: --lr"),
        **_SHARED,
        "optim.epochs": (5, "scripts/msrvtt.sh: --epochs"),
        "data.batch_size": (128, "scripts/msrvtt.sh: --batch_size"),
    },
    _LEFT_OUT,
)
Readout = Literal["global", "globals", "frames", "globals_and_frames"]


@dataclass(frozen=True, kw_only=True)
class DGLConfig:
    """Settings of DGL, with ranges in search_spaces/."""

    lr: float = setting(
        2e-3,
        doc="learning rate of all prompts (default: the released rate for MSR-VTT). The released rates for linear "
        "prompts are 1e-2 on LSMDC and 5e-3 on VATEX",
        part="recipe",
    )
    prompts: Literal["linear", "transformer"] = setting(
        "linear", doc="source of the prompts: linear (DGL^L) or transformer (DGL^T)"
    )
    num_prompts: int = setting(
        4,
        doc="number of global prompts, of local prompts per frame, and of tokens in a caption's prefix and postfix",
        unpublished=True,
    )
    num_frames: int = setting(
        12, doc="number of frames of a video; with prompts=transformer, each frame has its own local prompts"
    )
    readout: Readout = setting(
        "global",
        doc="tokens whose mean is the video's feature. global: the first global prompt; globals: all global prompts; "
        "frames: class tokens; globals_and_frames: both",
        unpublished=True,
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use <lr>=0 to train nothing.")
        require(self, ">= 1", "num_prompts", hint="Use method=zero_shot for a model without prompts.")
        require(self, ">= 1", "num_frames")


class LinearPrompts(nn.Module):
    """Learned local prompts of every layer, equal in all frames, with two linear maps that compute text prompts."""

    def __init__(self, backbone: Clip, count: int, bound: float) -> None:
        super().__init__()
        depth, width = len(backbone.vision.blocks), backbone.vision.width
        self.local = nn.Parameter(torch.empty(depth, count, width).uniform_(-bound, bound))
        self.prefix, self.postfix = (nn.Linear(width, backbone.text.width) for _ in range(2))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return local prompts (K, 1, P, D) and text prompts (K, 2P, E), prefix first."""
        return self.local[:, None], torch.cat([self.prefix(self.local), self.postfix(self.local)], dim=1)


class UnifiedPrompts(nn.Module):
    """Learned vectors of every layer, 2P for a caption, then P for each frame; one transformer block mixes them."""

    def __init__(self, backbone: Clip, count: int, num_frames: int) -> None:
        super().__init__()
        vision, width = backbone.vision, backbone.vision.width
        self.count, self.num_frames = count, num_frames
        self.embedding = nn.Parameter(torch.randn(len(vision.blocks), count * (2 + num_frames), width))
        self.mixer = new_block(width, vision.heads)
        self.to_text = nn.Sequential(
            nn.Linear(width, 2 * width), QuickGELU(), nn.Linear(2 * width, backbone.text.width)
        )

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return local prompts (K, T, P, D) and text prompts (K, 2P, E), prefix first."""
        mixed = passed(self.mixer, self.embedding)
        local = mixed[:, 2 * self.count :].unflatten(1, (self.num_frames, self.count))
        return local, self.to_text(mixed[:, : 2 * self.count])


def around_words(prompts: Tensor) -> BlockSeams:
    """Return hooks (seams) of one block that insert prompts (2P, E) before it and remove them after it.

    The first P are inserted after the start-of-text token, the other P after the padding.
    """
    count = len(prompts) // 2

    def before(x: Tensor, state: TokenState) -> Tensor:
        assert state.eot is not None
        state.eot = state.eot + count
        prefix, postfix = prompts.to(x.dtype).expand(len(x), -1, -1).split(count, dim=1)
        return torch.cat([x[:, :1], prefix, x[:, 1:], postfix], dim=1)

    def after(x: Tensor, state: TokenState) -> Tensor:
        assert state.eot is not None
        state.eot = state.eot - count
        return torch.cat([x[:, :1], x[:, 1 + count : -count]], dim=1)

    return BlockSeams(before=before, after=after)


class DGL(Method):
    """Frozen CLIP with global prompts for a whole video, and local prompts for its frames."""

    Config = DGLConfig
    PRESETS = {
        "paper": {**PAPER, "method.lr": 1e-2},  # the training of TempMe's tables, at the release's rate
        "original": LINEAR,
        "transformer": Override({"method.prompts": "transformer"}),  # the row `dgl_transformer`
        "transformer-paper": {**PAPER, "method.lr": 2e-3},
        "transformer-original": TRANSFORMER,
        "shapes": {"method.lr": 2e-4},  # with optim.lr_scale=50: 1e-2 and 2e-3, as released
        "transformer-shapes": {"method.lr": 4e-5},
    }

    @classmethod
    def capabilities(cls, config: DGLConfig) -> Capabilities:
        only = config.num_frames if config.prompts == "transformer" else None
        return Capabilities(uses_all_parameters=True, required_num_frames=only)

    def __init__(self, config: DGLConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        vision, text = backbone.vision, backbone.text
        if len(vision.blocks) < len(text.blocks):  # a text tower with fewer blocks takes the first prompts
            raise ValueError(
                f"text prompts of a layer are computed from its image prompts, but the image tower has only "
                f"{len(vision.blocks)} blocks and the text tower {len(text.blocks)}. Use a backbone such as "
                "ViT-B-32-quickgelu."
            )
        patch = int(vision.conv1.kernel_size[0])
        bound = math.sqrt(6 / (3 * patch**2 + vision.width))
        self.globals = nn.Parameter(torch.empty(config.num_prompts, vision.width).uniform_(-bound, bound))
        self.source: Callable[[], tuple[Tensor, Tensor]]
        if config.prompts == "linear":
            self.source = LinearPrompts(backbone, config.num_prompts, bound)
        else:
            self.source = UnifiedPrompts(backbone, config.num_prompts, config.num_frames)

    def begin_task(self, task: Task) -> None:
        """Do nothing, because all tasks train the same prompts."""

    def param_groups(self) -> list[ParamGroup]:
        added = [p for name, p in self.named_parameters() if not name.startswith("backbone.")]
        return [ParamGroup(name="prompts", params=added, lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        return l2_normalize(self.tower(self.backbone.vision, frames))

    def tower(self, tower: VisionTower, frames: Tensor) -> Tensor:
        """Embed each video: (B, T, 3, H, W) -> (B, d), not normalized."""
        x, state = tower.embed(frames)  # (B*T, N, D)
        local = self.source()[0].to(x.dtype)  # (K, T or 1, P, D)
        batch, num_frames, count = state.batch, state.frames, self.config.num_prompts
        state.protected = count
        x = x.unflatten(0, (batch, num_frames))
        shape = (batch, num_frames, -1, -1)
        x = torch.cat([x[:, :, :1], local[0].expand(shape), x[:, :, 1:]], dim=2).flatten(1, 2)
        x = torch.cat([self.globals.to(x.dtype).expand(batch, -1, -1), x], dim=1)
        for layer, block in enumerate(tower.blocks):
            state.layer = layer
            if layer:
                x = self.with_locals(x, local[layer].expand(shape))
            x = run_block(partial(block_of_video, block, count, num_frames), x, state)
        return self.read(tower, x[:, :count], x[:, count:].unflatten(1, (num_frames, -1))[:, :, 0])

    def with_locals(self, x: Tensor, local: Tensor) -> Tensor:
        """Replace the local prompts of videos x (B, G + T*N, D) by `local` (B, T, P, D)."""
        count = self.config.num_prompts
        own = x[:, count:].unflatten(1, (local.shape[1], -1))
        own = torch.cat([own[:, :, :1], local, own[:, :, 1 + count :]], dim=2)
        return torch.cat([x[:, :count], own.flatten(1, 2)], dim=1)

    def read(self, tower: VisionTower, globals_: Tensor, classes: Tensor) -> Tensor:
        """Compute features (B, d) of videos from global prompts (B, G, D) and class tokens (B, T, D), by `readout`."""
        chosen = {"global": globals_[:, :1], "globals": globals_, "frames": classes}
        tokens = chosen.get(self.config.readout, torch.cat([globals_, classes], dim=1))
        return tower.read(tokens).mean(dim=1)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        text = self.source()[1][: len(self.backbone.text.blocks)]
        return l2_normalize(self.backbone.text(tokens, [around_words(prompts) for prompts in text]))
