"""FrameFusionMoE: attention between frames, and experts selected by caption and task (arXiv:2503.10111, SIGIR 2025).

CLIP is frozen. Frame Fusion Adapters (FFA, section 3.3) let neighboring frames attend to each other in the vision
tower. Task-Aware Mixture-of-Experts adapters (TAME, section 3.4) condition a caption on the task whose stored videos it
searches. The cross-task loss (section 3.5) makes captions dissimilar to stored videos of previous tasks. Equation
numbers refer to the paper.

The defaults follow the text and equations of the paper. If the paper does not specify a setting of the method, the
value of the released code is used. Where paper and code differ, there is a setting (config.py), and preset `released`
follows the code. All settings outside of `method` have defaults that all methods share. In six of them the code differs
without a statement in the paper. Its learning rate warms up in the first task only, from 0, and follows a full period
of the cosine. Its weight decay applies to all tensors. It uses an older variant of AdamW, and crops and flips frames.
It selects the epoch on test videos. One difference is not reproduced: the gradient norm that the code clips includes
gradients of CLIP's two projections and temperature, which are never reset to zero and are in no optimizer.

Shapes: B pairs, T frames, L text length, D width of the text tower, d joint embedding, R stored videos of previous
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams, Clip
from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, Task, l2_normalize
from ctvr.methods.framefusion_moe.config import FrameFusionMoEConfig
from ctvr.methods.framefusion_moe.recipes import PRESETS
from ctvr.methods.layers.adapter_groups import expert_seams
from ctvr.methods.layers.expert_usage import usage
from ctvr.methods.layers.experts import PLACES, TaskAwareExperts
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.contrastive import contrastive, cross_task
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.reduction.reducers import combine, make_reducer
from ctvr.methods.layers.temporal import Direction, FrameFusion, fused_blocks, fusion_seams


class FrameFusionMoE(Method):
    """Frozen CLIP with FFA parallel to the vision tower's attention, and TAME on q, k, v and out of the text tower."""

    Config = FrameFusionMoEConfig
    ON_FEATURES = {f"method.{each.name}": 1e-3 for each in fields(FrameFusionMoEConfig) if each.name.startswith("lr_")}
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = PRESETS
    controls = ("framefusion_moe:train-references", "framefusion_moe:no-cross-task")

    train_features: Tensor  # (R, d) features of training videos; empty unless reference_source is `train`

    @classmethod
    def capabilities(cls, config: FrameFusionMoEConfig) -> Capabilities:
        return Capabilities(
            backbone_agnostic=True,
            fits_vectors=config.reducer.name == "none",
            required_num_frames=config.reducer.required_num_frames,
            joins_tasks=True,
            uses_all_parameters=True,
            accumulation="features",
            task_conditioned_text=config.use_tame and config.use_prototypes,
            text_is_frozen=not config.use_tame,
        )

    @classmethod
    def trains_on_searched(cls, config: FrameFusionMoEConfig, of_base: bool = False) -> bool:
        return config.reference_source == "gallery" and config.beta > 0

    def __init__(self, config: FrameFusionMoEConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.ffa = nn.ModuleDict({str(layer): self._make_ffa(layer) for layer in self._ffa_blocks()})
        self.reducer = make_reducer(config.reducer, backbone.vision)
        self._vision_seams()  # raises an error if token i has different positions in the frames under this reducer
        fused = self._ffa_blocks() or range(len(backbone.vision.blocks), 0)
        self.frozen_blocks = fused.start if config.reducer.name == "none" else 0
        depth = len(backbone.text.blocks) if config.use_tame else 0
        self.tame = nn.ModuleList(nn.ModuleDict({place: self._make_tame() for place in PLACES}) for _ in range(depth))
        self.prototypes = nn.ParameterList()  # p_t (D,) of eq. 4 for each task of the stream
        self.register_buffer("train_features", torch.empty(0))
        self._task: Task | None = None
        self._galleries: dict[int, Tensor] = {}
        self._former = PastGallerySampler(config.references == "all")

    @property
    def _has_bypass(self) -> bool:
        """Return whether task 1 uses only expert 0, without the router, as in the released code; needs prototypes."""
        return self.config.first_task_bypass and self.config.use_prototypes

    # ------------------------------------------------------------------------------------- the stream

    def begin_task(self, task: Task) -> None:
        if self.declared.task_conditioned_text and not self.prototypes:
            width = self.backbone.text.width
            self.prototypes.extend(torch.randn(width) * width**-0.5 for _ in range(task.num_tasks))
        if task.index or not self._has_bypass:
            self._grow()
        self._task = task
        self._former.restart()

    def _grow(self) -> None:
        """Add routers, and experts that are copies of expert 0, to the adapters that do not have them.

        Nothing is added if adapters have no routers, as in preset `no-tame` with one expert for all tasks.
        """
        config = self.config
        for adapter in self._adapters() if config.is_routed else ():
            if adapter.router is None:
                adapter.grow(config.num_experts, config.top_k, config.noisy_router)

    def _adapters(self) -> Iterator[TaskAwareExperts]:
        for block in self.tame:
            yield from block.values()  # type: ignore[operator]

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        if self.config.reference_source == "train":
            stored = [self.train_features] if self.train_features.numel() else []
            self.train_features = torch.cat([*stored, *encode_once(self.encode_video, loader)])

    def on_gallery_stored(self, task: Task, gallery: Tensor) -> None:
        self._galleries[task.index] = gallery.detach()

    def param_groups(self) -> list[ParamGroup]:
        return self._groups(self._task.index if self._task is not None else 0)

    def _groups(self, index: int) -> list[ParamGroup]:
        """Return the parameters that task `index` trains.

        With the bypass, task 1 trains A and expert 0; otherwise all experts and the routers are trained. Joint training
        starts from CLIP and therefore uses the learning rates of task 1; it trains all prototypes so far.
        """
        config = self.config
        first = index == 0 or self.is_joint
        vision = [p for block in self.ffa.values() for p in block.attention.parameters()]  # type: ignore[union-attr]
        vision += self.reducer.parameters()
        other: list[nn.Parameter] = [block.alpha for block in self.ffa.values()]  # type: ignore[misc]
        text: list[nn.Parameter] = []
        is_bypassed = index == 0 and self._has_bypass
        for adapter in self._adapters():
            text += [adapter.experts.A, adapter.experts.B[0]] if is_bypassed else [*adapter.parameters()]
        if not is_bypassed:  # the prototypes of other tasks are not used in the task
            start = int(self._has_bypass) if self.is_joint else index
            other += list(self.prototypes)[start : index + 1]
        if first:
            rates = (config.lr_vision_first, config.lr_text_first, config.lr_other_first)
        else:
            rates = (config.lr_vision, config.lr_text, config.lr_other)
        groups = zip(("ffa", "tame", "alpha_and_prototypes"), (vision, text, other), rates)
        return [ParamGroup(name=name, params=params, lr=lr) for name, params, lr in groups if params]

    # --------------------------------------------------------------------------------------- features

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode videos by the mean of the frames' class tokens: (B, T, 3, H, W) -> unit features (B, d)."""
        return mean_pool(self.backbone.vision(frames, self._vision_seams()))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions that search the videos of `task`, or of the current task if None: (B, L) -> unit (B, d)."""
        present = self._task.index if self._task is not None else 0
        index = task if task is not None and self.declared.task_conditioned_text else present
        return l2_normalize(self.backbone.text(tokens, self._text_seams(index)))

    def scale(self) -> Tensor:
        own = self.backbone.logit_scale
        return (own if self.config.logit_scale is None else own.new_full((), self.config.logit_scale)).exp()

    def _vision_seams(self) -> list[BlockSeams | None]:
        return list(combine(self.reducer.seams(), fusion_seams(self.ffa, len(self.backbone.vision.blocks))))

    def _text_seams(self, index: int) -> list[BlockSeams] | None:
        if not self.config.use_tame:
            return None
        prototype = self.prototypes[index] if index < len(self.prototypes) else None
        return expert_seams(self.tame, prototype, is_routed=not (self._has_bypass and index == 0))

    # ----------------------------------------------------------------------------------------- losses

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of eq. 9, (1 - beta) (L_v2t + L_t2v) / 2 + beta L_CT; in task 1 only the loss of eq. 7."""
        config = self.config
        queries, videos = gather(self.encode_own_captions(batch)), gather(self.encode_video(batch.frames))
        index = 0 if self._task is None else self._task.index
        with torch.autocast(videos.device.type, enabled=False):
            scale = self.scale().float()
            logits = scale * self.score(queries, videos)
            within = contrastive(logits, config.loss_reduction)  # eq. 7
            if index == 0 or config.beta == 0:
                return {"contrastive": within}
            references = self._former.references(self._sources(index), videos)
            across = cross_task(logits, scale * self.score(queries, references))  # eq. 8
        return {"contrastive": (1 - config.beta) * within, "cross_task": config.beta * across}

    def _sources(self, index: int) -> list[Tensor]:
        """Return tensors (n, d) with the features of stored or of training videos of the tasks before `index`."""
        if self.config.reference_source == "train":
            return [self.train_features]
        return [gallery for i, gallery in sorted(self._galleries.items()) if i < index]

    # ------------------------------------------------------------------------------------------ parts

    def _ffa_blocks(self) -> range:
        """Return the indices of vision blocks with FFA, which depend on `ffa_layers` and `ffa_placement`."""
        count = self.config.ffa_layers if self.config.use_ffa else 0
        return fused_blocks(len(self.backbone.vision.blocks), count, self.config.ffa_placement)

    def _make_ffa(self, layer: int) -> FrameFusion:
        config, vision = self.config, self.backbone.vision
        direction: Direction = "next" if config.ffa_direction == "alternate" and layer % 2 else "previous"
        start = (config.ffa_mix, config.ffa_output, config.ffa_init, config.alpha_init)
        return FrameFusion(vision.width, int(vision.heads), direction, *start)

    def _make_tame(self) -> TaskAwareExperts:
        c, width = self.config, self.backbone.text.width
        return TaskAwareExperts(width, width, c.rank, c.lora_alpha / c.rank, c.dropout)  # alpha / r is lambda of eq. 6

    def batch_metrics(self) -> dict[str, float | Tensor]:
        """Return the usage of TAME's experts in the last batch."""
        return usage(self.tame)

    def counted_parameters(self) -> dict[str, int]:
        """Return three counts of parameters by name; call the function after the first `begin_task`.

        `trained` and `trained_first_task` count the parameters that the optimizer updates in a later and in the first
        task. `paper` counts those in the paper's 46.8M (46,801,933 for MSRVTT in 10 tasks): FFA in all blocks, even if
        it is not used, prototypes of all tasks, and CLIP's two projections and temperature, which are not trained.
        """
        with torch.device("meta"):
            grown = self._make_tame()
            if self.config.is_routed:
                grown.grow(self.config.num_experts, self.config.top_k, self.config.noisy_router)
            one_ffa = sum(p.numel() for p in self._make_ffa(0).parameters()) if self.ffa else 0
        each = sum(p.numel() for p in grown.parameters())
        alone = grown.experts.A.numel() + grown.experts.B[0].numel()
        count = len(PLACES) * len(self.tame)
        sizes = {}
        for name, index in (("trained", 1), ("trained_first_task", 0)):
            other = sum(p.numel() for group in self._groups(index) if group["name"] != "tame" for p in group["params"])
            sizes[name] = other + count * (alone if index == 0 and self._has_bypass else each)
        clip = self.backbone
        kept = [clip.vision.proj, clip.text.proj, clip.logit_scale, *self.prototypes]
        fixed = sum(p.numel() for p in kept) + count * each + one_ffa * len(clip.vision.blocks)
        return {"paper": fixed, **sizes}


# Stored video features of previous tasks, the additional negatives of eq. 8 of CTVR (arXiv:2503.10111).
#
# Shapes: B pairs, R stored videos of previous tasks, d joint embedding.


class PastGallerySampler:
    """Sampler of stored features of previous tasks: each step gets all of them, or the next batch of them.

    Batches follow the stored order and have as many rows as the task's first batch of pairs. The last batch of a pass
    over the stored features may be shorter. Every task begins at the first row, so checkpoints do not contain the
    position. A call without gradients returns the batch of the next step and does not advance.

    Args:
        all_at_once: whether every step gets all stored features, as in eq. 8; the released code uses batches.
    """

    def __init__(self, all_at_once: bool) -> None:
        self.all_at_once = all_at_once
        self.stored: Tensor | None = None  # (R, d), concatenated at the first use in a task
        self._next_row = self._rows = 0

    def restart(self) -> None:
        """Remove the stored features and reset the position to the first row; call it at the start of a task."""
        self.stored, self._next_row, self._rows = None, 0, 0

    def references(self, sources: Sequence[Tensor], videos: Tensor) -> Tensor:
        """Return the stored features (R', d) that a step uses as negatives; (0, d) in the first task.

        Args:
            sources: features (n, d) of each previous task, in order; read only in the first step of a task.
            videos: (B, d) features of the videos of the step.
        """
        if self.stored is None:
            parts = [part for part in sources if part.numel()]
            self.stored = torch.cat(parts).to(videos) if parts else videos.new_empty(0, videos.shape[1])
        if self.all_at_once or not len(self.stored):
            return self.stored
        rows = self._rows or len(videos)
        batch = self.stored[self._next_row : self._next_row + rows]
        if torch.is_grad_enabled():
            self._rows, self._next_row = rows, (self._next_row + len(batch)) % len(self.stored)
        return batch


def encode_once(encode: Callable[[Tensor], Tensor], loader: Iterable[Batch]) -> list[Tensor]:
    """Return the feature (1, d) of each distinct video in `loader`, in order of first occurrence.

    Args:
        encode: frames (B, T, 3, H, W) -> features (B, d).
        loader: batches of pairs; a video occurs once for each of its captions.
    """
    features: dict[int, Tensor] = {}
    for batch in loader:
        for number, feature in zip(batch.video_ids.tolist(), encode(batch.frames).split(1)):
            features.setdefault(number, feature)
    return list(features.values())
