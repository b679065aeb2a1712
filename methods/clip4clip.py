"""CLIP4Clip: all of CLIP fine-tuned on one task after the other.

Luo et al., "CLIP4Clip: An Empirical Study of CLIP for End to End Video Clip Retrieval",
arXiv:2104.08860, sections 3.2 (similarity headers) and 3.3 (loss). With mean pooling it is the plain sequential
baseline of CTVR (arXiv:2503.10111). CTVR averages frame features that are not normalized, and uses a small batch. CTVR
does not publish the learning rate; 1e-6 is the default of its released configuration.

The header tightTransf is omitted. It scores every pair of caption and video by a transformer, so videos do not have
features that can be stored and searched.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip, TextTower, TokenState, run_blocks
from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup, Recipe, l2_normalize
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.missing_frames import without_missing
from ctvr.methods.layers.parameter_groups import parts
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.layers.reduction.reducers import make_reducer
from ctvr.methods.layers.temperature import ScaleConfig, bound_scale, set_scale
from ctvr.methods.settings import SettingError, group, require, setting

# The authors' command for MSR-VTT; presets `seqLSTM` and `seqTransf` change it to the commands of the other headers
ORIGINAL = Recipe(
    "ArrowLuo/CLIP4Clip@508ffa3",
    {
        "method.lr": (1e-7, "README: --lr 1e-4 --coef_lr 1e-3"),
        "method.lr_head": (1e-4, "README: --lr 1e-4"),
        "method.frame_norm": ("l2", "modules/modeling.py: every frame at unit length before the mean"),
        "method.loss_reduction": ("mean", "modules/modeling.py: half the sum of both directions"),
        "method.train_scale": (True, "main_task_retrieval.py: freeze_layer_num keeps logit_scale trained"),
        "method.max_scale": (100.0, "main_task_retrieval.py: clamp at log 100 after a step"),
        "method.min_scale": (0.0, "main_task_retrieval.py: no lower bound"),
        "method.sim_layers": (4, "main_task_retrieval.py: --cross_num_hidden_layers"),
        "method.sim_eps": (1e-12, "modules/until_module.py: eps of the header's LayerNorms"),
        "method.frozen": (
            (
                "text.token_embedding",
                "text.positional_embedding",
                "vision.class_embedding",
                "vision.positional_embedding",
                "vision.conv1",
                "vision.ln_pre",
            ),
            "README: --freeze_layer_num 0",
        ),
        "optim.name": ("bert_adam", "modules/optimization.py"),
        "optim.betas": ((0.9, 0.98), "main_task_retrieval.py: prep_optimizer"),
        "optim.eps": (1e-6, "main_task_retrieval.py: prep_optimizer"),
        "optim.weight_decay": (0.2, "main_task_retrieval.py: prep_optimizer"),
        "optim.decay_parameters": ("no_bias", "main_task_retrieval.py: LayerNorm.weight occurs in no name"),
        "optim.schedule": ("cosine_uncorrected_warmup", "modules/optimization.py: warmup_cosine"),
        "optim.least": (0.0, "modules/optimization.py: warmup_cosine"),
        "optim.warmup": (0.1, "main_task_retrieval.py: --warmup_proportion"),
        "optim.warmup_from": ("zero", "modules/optimization.py: warmup_cosine"),
        "optim.grad_clip": (1.0, "main_task_retrieval.py: of all, then of each tensor"),
        "optim.epochs": (5, "README: --epochs 5"),
        "data.batch_size": (128, "README: --batch_size 128"),
        "method.mask_missing": (True, "modules/modeling.py: the mean over the frames of the video mask"),
        "data.num_frames": (12, "README: --max_frames 12"),
        "data.sampling": ("one_per_second", "README: --feature_framerate 1 --slice_framepos 2"),
        "data.max_tokens": (32, "README: --max_words 32"),
        "evaluation.select": ("best", "main_task_retrieval.py: the epoch with the best R@1 of the test set"),
    },
    (
        "float16 weights, gradients and moments: 1e-7 there is no rate of float32 (docs/protocol.md)",
        "the last batch of an epoch is dropped when it is short",
        "over W workers the towers get 1/W of the gradient, logit_scale all of it (docs/protocol.md)",
        "tightTransf",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Clip4ClipConfig(ScaleConfig):
    """Settings of CLIP4Clip, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.weight_decay", "optim.warmup")

    lr: float = setting(1e-6, doc="learning rate of both towers", unpublished=True, part="recipe")
    sim_header: Literal["meanP", "seqLSTM", "seqTransf"] = setting(
        "meanP", doc="module that processes the features of frames before their mean is computed"
    )
    sim_layers: int = setting(4, doc="number of blocks of seqTransf, at most the depth of CLIP's text tower")
    lr_head: float = setting(
        1e-4,
        doc="learning rate of the modules seqLSTM and seqTransf (default: the rate of new modules in CLIP4Clip)",
        part="recipe",
    )
    frame_norm: Literal["none", "l2"] = setting("none", doc="normalization of each frame's feature before the mean")
    loss_reduction: Literal["mean", "sum"] = setting(
        "mean", doc="mean or sum of the two directions of the contrastive loss", part="loss"
    )
    mask_same_video: bool = setting(
        False, doc="whether to exclude other captions of the same video from the negatives", part="loss"
    )
    reducer: ReducerConfig = group(
        REDUCERS, "none", doc="token reduction in the vision tower; its new weights learn at lr_head"
    )
    sim_eps: float | None = setting(
        None, doc="epsilon of seqTransf's LayerNorms; if none, 1e-5 as in CLIP's text tower"
    )
    mask_missing: bool = setting(
        False, doc="whether to mask all-zero frames at the end of a video, which data.sampling=one_per_second adds"
    )
    frozen: tuple[str, ...] = setting((), doc="frozen parts of CLIP, such as vision.conv1 or text.blocks.0")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "lr", hint="Use <lr>=0 for the zero-shot model.")
        require(self, ">= 0", "lr_head")
        require(self, ">= 1", "sim_layers", hint="Use <sim_header>=meanP for none.")
        require(self, "> 0", "sim_eps", hint="CLIP4Clip's code uses 1e-12.")
        if self.mask_missing and self.reducer.joins_frames:
            raise SettingError(
                f"<mask_missing> drops frames, but <reducer.name>={self.reducer.name} merges frames",
                write="<reducer.name>=tome",
            )


class Clip4Clip(Method):
    """CLIP with averaged frame features, optionally after an LSTM or attention among frames; fully fine-tuned."""

    Config = Clip4ClipConfig
    ON_FEATURES = {"method.lr": 1e-3, "method.lr_head": 1e-3}
    PRESETS = {
        "paper": {},
        "released": {"method.loss_reduction": "sum", "optim.num_cycles": 1.0, "optim.decay_parameters": "all"},
        "original": ORIGINAL,
        "seqLSTM": Override({"method.frame_norm": "l2", "method.sim_header": "seqLSTM"}),
        "seqTransf": Override({"method.frame_norm": "l2", "method.sim_header": "seqTransf"}),
        # with optim.lr_scale=50: 2e-4, which suits the small backbone, and 1e-3
        "shapes": {"method.lr": 4e-6, "method.lr_head": 2e-5},
    }

    @classmethod
    def capabilities(cls, config: Clip4ClipConfig) -> Capabilities:
        return Capabilities(
            backbone_agnostic=True,
            fits_vectors=config.reducer.name == "none",
            uses_all_parameters=True,
            accumulation="features",
            required_num_frames=config.reducer.required_num_frames,
            masks_missing_frames=config.mask_missing,
        )

    def __init__(self, config: Clip4ClipConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        set_scale(backbone, config)
        self._frozen = {id(parameter) for parameter in parts(backbone, config.frozen)}
        self.reducer = make_reducer(config.reducer, backbone.vision)
        self.header: nn.Module | None = None
        if config.sim_header == "seqLSTM":
            self.header = FrameLSTM(backbone.embed_dim)
        elif config.sim_header == "seqTransf":
            self.header = FrameTransformer(backbone.text, backbone.embed_dim, config.sim_layers, config.sim_eps)
            self.max_frames = len(self.header.positions)

    def param_groups(self) -> list[ParamGroup]:
        parameters = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
        if self.config.train_scale:
            parameters.append(self.backbone.logit_scale)
        free = [parameter for parameter in parameters if id(parameter) not in self._frozen]
        groups = [ParamGroup(name="clip", params=free, lr=self.config.lr)]
        if self.header is not None:
            groups.append(ParamGroup(name="header", params=list(self.header.parameters()), lr=self.config.lr_head))
        if added := list(self.reducer.parameters()):
            groups.append(ParamGroup(name="reducer", params=added, lr=self.config.lr_head))
        return groups

    def encode_video(self, frames: Tensor) -> Tensor:
        return without_missing(frames, self._encode) if self.config.mask_missing else self._encode(frames)

    def _encode(self, frames: Tensor) -> Tensor:
        features = self.backbone.vision(frames, self.reducer.seams())
        if self.header is not None:
            features = self.header(features)
        return mean_pool(features, self.config.frame_norm)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        videos = gather(batch.video_ids) if self.config.mask_same_video else None
        return {"contrastive": self.info_nce(batch, self.config.loss_reduction, videos)}

    def after_step(self) -> None:
        bound_scale(self.backbone, self.config)


# CLIP4Clip's sequential similarity headers (Luo et al., arXiv:2104.08860, section 3.2), which mix frame features.
#
# Both headers are residual: they add their output to the frame features. Mean pooling follows (layers/pooling.py).
#
# Shapes: B videos, T frames, d joint embedding.


class FrameLSTM(nn.Module):
    """Header seqLSTM: f + LSTM(f), with one forward layer of 4 (2 d^2 + 2 d) parameters, 2,101,248 for d = 512.

    The released code also has a table of position embeddings that its LSTM does not read; the table is omitted here.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, frames: Tensor) -> Tensor:
        """Map frame features (B, T, d) to (B, T, d), not normalized."""
        # cuDNN's backward pass needs training mode, and EWC requests gradients in evaluation mode
        self.lstm.train(self.training or torch.is_grad_enabled())
        return frames + self.lstm(frames)[0]


class FrameTransformer(nn.Module):
    """Header seqTransf: f + Transformer(f + p) with position embeddings p; blocks and p are copied from a text tower.

    For ViT-B/32, 4 blocks of 3,152,384 parameters and 77 position embeddings of width 512 have 12,648,960 parameters.
    No frame is masked, because every video has T frames.

    Args:
        text: tower whose first blocks and position embeddings are copied.
        width: d of the joint embedding.
        layers: number of blocks; if the text tower has fewer, all of its blocks are copied.
        eps: epsilon of the copied LayerNorms, 1e-12 in the released code; if None, it is unchanged.

    Raises:
        ValueError: if the text tower's width differs from that of the joint embedding.
    """

    def __init__(self, text: TextTower, width: int, layers: int = 4, eps: float | None = None) -> None:
        super().__init__()
        if text.width != width:
            raise ValueError(
                f"seqTransf starts from CLIP's text blocks of width {text.width}, but frame features have {width} "
                "dimensions. Set method.sim_header=seqLSTM, or choose another backbone."
            )
        self.positions = nn.Parameter(text.positional_embedding.detach().clone())  # (context, d)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for block in text.blocks[:layers])
        for module in self.blocks.modules():
            if isinstance(module, nn.LayerNorm) and eps is not None:
                module.eps = eps

    def forward(self, frames: Tensor) -> Tensor:
        """Map frame features (B, T, d) to (B, T, d), not normalized; T is at most the tower's context length."""
        batch, num_frames, _ = frames.shape
        x = frames + self.positions[:num_frames].to(frames.dtype)
        return frames + run_blocks(self.blocks, x, None, TokenState(batch), causal=False)
