"""CLIP-ViP: CLIP's image tower becomes a video tower through proxy tokens that see all frames.

Xue et al., "CLIP-ViP: Adapting Pre-trained Image-Text Model to Video-Language Alignment", arXiv:2209.06430
(ICLR 2023), section 3.3. Here it is fine-tuned on one task after the other, as in CTVR (arXiv:2503.10111, table 1).
Its weights after pre-training on HD-VILA are not used, so the paper's results cannot be reached.

    globals  = class token and P proxies, all at the position of the class token, without a time embedding
    patches  = patches of frame t, at their positions, plus a time embedding tau_t, which starts at zero
    in every block, with CLIP's weights:  a global token attends to all tokens;
    a patch attends to the globals and to the patches of its own frame
    v = the class token after the last block

Both released codes draw proxies from N(0, 1), so a proxy has about 28 times the norm of CLIP's class token. CTVR omits
the pre-training on HD-VILA that would correct it. With `proxy_init=copy_cls` the model starts close to CLIP.

Shapes: B videos, T frames, N patches of a frame, G globals (1 + P), D width, H heads, d joint embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Attention, Clip, TokenState, VisionTower, record, run_block
from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup, Recipe, l2_normalize
from ctvr.methods.layers.global_tokens import attend, block_of_video
from ctvr.methods.layers.temperature import ScaleConfig, bound_scale, set_scale
from ctvr.methods.settings import require, setting

# src/configs/msrvtt_retrieval/msrvtt_retrieval_vip_base_32.json, which starts from post-pre-trained weights
_FILE = "msrvtt_retrieval_vip_base_32.json"
ORIGINAL = Recipe(
    "microsoft/XPretrain@5318f2a, CLIP-ViP",
    {
        "method.lr": (1e-6, f"{_FILE}: learning_rate"),
        "method.num_proxies": (3, f"{_FILE}: add_cls_num, in addition to the class token"),
        "method.temporal_size": (12, f"{_FILE}: temporal_size"),
        "method.proxy_init": ("normal", "src/modeling/CLIP_ViP.py"),
        "method.loss_reduction": ("sum", "src/optimization/loss.py: NCELearnableTempLoss"),
        "method.train_scale": (True, "src/modeling/VidCLIP.py"),
        "method.start_scale": (math.exp(4.6), f"{_FILE}: logit_scale_init_value 4.60"),
        "method.min_scale": (1.0, "src/tasks/run_video_retrieval.py: clamp to [0, log 200]"),
        "method.max_scale": (200.0, "src/tasks/run_video_retrieval.py: clamp to [0, log 200]"),
        "optim.name": ("adamw_hf", "src/optimization/adamw.py"),
        "optim.betas": ((0.9, 0.98), f"{_FILE}: betas"),
        "optim.eps": (1e-6, "src/optimization/adamw.py"),
        "optim.weight_decay": (0.2, f"{_FILE}: weight_decay"),
        "optim.decay_parameters": ("no_bias_or_scale", "src/optimization/utils.py: LayerNorm.weight occurs in no name"),
        "optim.schedule": ("cosine_offset1", "src/optimization/sched.py; steps are counted from 1"),
        "optim.warmup": (0.01, f"{_FILE}: warmup_ratio"),
        "optim.warmup_from": ("first", "src/optimization/sched.py; steps are counted from 1"),
        "optim.final_lr": (1e-8, "src/optimization/sched.py: where the curve ends in 0"),
        "optim.grad_clip": (1.0, f"{_FILE}: grad_norm"),
        "optim.epochs": (100, f"{_FILE}: num_train_epochs"),
        "data.batch_size": (128, f"{_FILE}: train_batch_size 16, on 8 workers"),
        "data.caption_sampling": ("random_per_video", "src/datasets/dataset_video_retrieval.py"),
        "data.num_frames": (12, f"{_FILE}: train_num_frms"),
        "data.sampling": ("linspace", "src/datasets/dataset_video_retrieval.py: at test; training jitters the ends"),
        "data.max_tokens": (50, f"{_FILE}: max_txt_len"),
    },
    (
        "the weights of the post-pre-training on HD-VILA",
        "mixed precision (apex O2), with float32 master weights",
        "in training the ends of the frames are jittered; pictures are squeezed to squares, here cut",
        "the best evaluation by R@1 of the similarities revised by Dual Softmax",
        "the clamp is between forward and backward: one more forward pass with a value out of bounds",
    ),
)


@dataclass(frozen=True, kw_only=True)
class CLIPViPConfig(ScaleConfig):
    """Settings of CLIP-ViP, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup")

    lr: float = setting(1e-6, doc="learning rate of all weights", unpublished=True, part="recipe")
    num_proxies: int = setting(
        4,
        doc="number of video proxies in addition to the class token. CTVR's paper and code use 4. The original code "
        "uses 3 (4 with the class token). Both numbers give 151.29 M parameters after rounding",
    )
    num_frames: int = setting(12, doc="number of frames of a video")
    temporal_size: int | None = setting(
        None,
        doc="number of time embeddings, which are interpolated to the number of frames; none: one for each frame "
        "(CTVR)",
    )
    proxy_init: Literal["normal", "copy_cls", "zeros"] = setting(
        "normal", doc="initialization of the video proxies", unpublished=True
    )
    loss_reduction: Literal["mean", "sum"] = setting(
        "mean", doc="mean or sum of both directions of the loss; both released codes use the sum", part="loss"
    )
    lr_scale: float | None = setting(
        None,
        doc="learning rate of logit_scale; none: the value of lr. CLIP-ViP uses 1e-5 on DiDeMo with ViT-B/16",
        part="recipe",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "lr_scale", hint="Use none for the rate of the other weights.")
        require(self, ">= 0", "lr", hint="Use <lr>=0 to train nothing.")
        require(self, ">= 0", "num_proxies", hint="Use 0 for the class token alone.")
        require(self, ">= 1", "temporal_size")


def between(size: int, num_frames: int, device: torch.device) -> Tensor:
    """Return the matrix (T, S) that interpolates S time embeddings linearly to T frames, as `F.interpolate` does.

    A matrix product is used because the backward pass of `F.interpolate` on CUDA is not deterministic. Ends are not
    aligned: frame t has position (t + 1/2) S / T - 1/2, and a position outside [0, S - 1] takes the nearest embedding.

    Args:
        size: S.
        num_frames: T.
        device: device of the matrix.
    """
    place = (torch.arange(num_frames, device=device) + 0.5) * (size / num_frames) - 0.5
    return (1 - (place.clamp(0, size - 1)[:, None] - torch.arange(size, device=device)).abs()).clamp(min=0)


class VideoProxies(nn.Module):
    """Trained proxies and time embeddings, with the forward pass that encodes videos by an image tower."""

    def __init__(self, tower: VisionTower, config: CLIPViPConfig) -> None:
        super().__init__()
        proxies = torch.zeros(config.num_proxies, tower.width)
        if config.proxy_init == "normal":
            proxies = torch.randn_like(proxies)
        elif config.proxy_init == "copy_cls":
            own = tower.class_embedding.detach()
            proxies = own + 0.02 * own.std() * torch.randn_like(proxies)
        self.proxies = nn.Parameter(proxies)  # (P, D)
        self.time = nn.Parameter(torch.zeros(1, config.temporal_size or config.num_frames, tower.width))  # tau

    def time_embedding(self, num_frames: int) -> Tensor:
        """Return tau (1, T, D), linearly interpolated if T differs from the number of embeddings."""
        if num_frames == self.time.shape[1]:
            return self.time
        with torch.autocast(self.time.device.type, enabled=False):
            return between(self.time.shape[1], num_frames, self.time.device) @ self.time

    def forward(self, tower: VisionTower, frames: Tensor) -> Tensor:
        """Embed each video: (B, T, 3, H, W) -> (B, d), not normalized."""
        num_frames = frames.shape[1]
        x = self._embed(tower, frames)
        state = record(TokenState(len(frames), num_frames, classes=1, protected=1 + len(self.proxies)))
        for layer, block in enumerate(tower.blocks):
            state.layer = layer
            x = run_block(partial(self.block, block, num_frames), x, state)
        return tower.read(x[:, 0])

    def _embed(self, tower: Any, frames: Tensor) -> Tensor:
        """Return tokens (B, G + T*N, D) of videos after `ln_pre`: globals, then the patches of each frame in turn."""
        batch, num_frames = frames.shape[:2]
        patches = tower.conv1(frames.flatten(0, 1)).flatten(2).mT  # (B*T, N, D)
        place = tower.positional_embedding.to(patches.dtype)
        patches = (patches + place[1:]).unflatten(0, (batch, num_frames))
        patches = patches + self.time_embedding(num_frames)[:, :, None].to(patches.dtype)
        whole = torch.cat([tower.class_embedding[None], self.proxies]).to(patches.dtype) + place[0]  # (G, D)
        return tower.ln_pre(torch.cat([whole.expand(batch, -1, -1), patches.flatten(1, 2)], dim=1))

    def block(self, block: Any, num_frames: int, x: Tensor, state: TokenState) -> Tensor:
        """Apply one of CLIP's blocks to videos (B, G + T*N, D), with the attention that the module's text defines."""
        return block_of_video(block, 1 + len(self.proxies), num_frames, x, state)

    def attend(self, attention: Attention, y: Tensor, num_frames: int, state: TokenState) -> Tensor:
        """Compute attention among tokens y (B, G + T*N, D), same shape: one softmax for globals, one for patches."""
        return attend(attention, y, 1 + len(self.proxies), num_frames, state)


class CLIPViP(Method):
    """CLIP with video proxies; all weights are trained."""

    Config = CLIPViPConfig
    PRESETS = {
        "paper": {},
        "shapes": {
            "method.lr": 4e-6,
            "method.proxy_init": "copy_cls",
        },  # with optim.lr_scale=50, for the small backbone
        "released": {"method.loss_reduction": "sum", "optim.num_cycles": 1.0, "optim.decay_parameters": "all"},
        "original": ORIGINAL,
        "close-to-clip": Override({"method.proxy_init": "copy_cls"}),
    }

    @classmethod
    def capabilities(cls, config: CLIPViPConfig) -> Capabilities:
        return Capabilities(accumulation="features", uses_all_parameters=True)

    def __init__(self, config: CLIPViPConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        set_scale(backbone, config)
        self.video = VideoProxies(backbone.vision, config)

    def param_groups(self) -> list[ParamGroup]:
        clip = self.backbone
        parameters = [*clip.vision.parameters(), *clip.text.parameters(), *self.video.parameters()]
        groups = [ParamGroup(name="clip_and_proxies", params=parameters, lr=self.config.lr)]
        if self.config.train_scale and self.config.lr_scale is None:
            parameters.append(clip.logit_scale)
        elif self.config.train_scale and self.config.lr_scale is not None:
            groups.append(ParamGroup(name="logit_scale", params=[clip.logit_scale], lr=self.config.lr_scale))
        return groups

    def encode_video(self, frames: Tensor) -> Tensor:
        return l2_normalize(self.video(self.backbone.vision, frames))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"contrastive": self.info_nce(batch, self.config.loss_reduction)}

    def after_step(self) -> None:
        bound_scale(self.backbone, self.config)
